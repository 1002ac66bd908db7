"""programs that are partitioned over the eight devices as which the CPU appears."""
