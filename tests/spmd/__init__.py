"""Programs that are divided over the eight devices as which the CPU appears."""
