"""What every rule and every pass builds with: values, shapes, dtypes, operations."""
