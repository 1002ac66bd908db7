"""A call of a program: supply the arguments, execute, export the results, act behind it."""
