"""StableHLO modules on PJRT: clients, compilation, buffers, executables, metrics."""
