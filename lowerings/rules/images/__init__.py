"""Rules of operators that slide a window over images, or resample them."""
