"""Max, average and adaptive pooling, and their gradients."""
