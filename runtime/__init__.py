"""StableHLO modules and PJRT: clients, compile, buffers, executables, metrics."""
