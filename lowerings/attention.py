"""Scaled dot product attention in all its variants."""
