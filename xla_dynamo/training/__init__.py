"""The whole training step, forward, backward and optimizer, as one graph."""
