"""Rules of operators that draw random numbers."""
