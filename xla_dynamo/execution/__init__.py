"""Programs to callables: PJRT executables bound to torch tensors, and run."""
