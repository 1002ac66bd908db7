"""Sort, topk, order statistics, searches in sorted data."""
