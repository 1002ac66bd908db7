"""Where the values of a program's calls are: one class for each kind of placement."""
