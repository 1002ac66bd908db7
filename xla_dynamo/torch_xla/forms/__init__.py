"""What PyTorch/XLA has and this package writes for its scripts alone."""
