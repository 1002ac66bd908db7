"""Rules of products, solves and decompositions of matrices."""
