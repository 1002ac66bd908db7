"""Forms of operators that are faster on the CPU alone: library calls, rewritten convolutions."""
