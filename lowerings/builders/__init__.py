"""The builders that rules and passes write StableHLO with: values, shapes, dtypes, operations."""
