"""What `explain` shows of a compilation."""
