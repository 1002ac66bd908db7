"""Random numbers: a key that is an input of the program, never a constant in it."""
