"""Special functions: gamma, Bessel, zeta, erf inverses, and other mathematical long tail."""
