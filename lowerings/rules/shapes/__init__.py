"""Rules of operators that make, move or repeat elements and compute nothing."""
