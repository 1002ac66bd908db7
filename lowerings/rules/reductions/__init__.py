"""Rules of operators that combine elements: sums, scans, norms, sorts."""
