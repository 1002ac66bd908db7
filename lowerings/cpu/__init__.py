"""Forms of operators that are faster on the CPU alone: products, and rewritten convolutions."""
