"""Jobs of several processes: launching them, what they exchange, and torch.distributed."""
