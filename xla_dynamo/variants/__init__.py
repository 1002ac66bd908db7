"""The executables of one graph: which there are, which a call needs, what it does meanwhile."""
