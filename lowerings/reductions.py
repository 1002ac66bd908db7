"""Reductions: sums, products, extrema, moments, norms, and softmax."""
