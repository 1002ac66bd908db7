"""The report of `explain`: what was compiled for the calls of a function, and why."""
