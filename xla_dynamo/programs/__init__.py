"""FX to StableHLO: an ATen graph lowered to a program, and the program as data."""
