"""Tensors made from nothing: full, arange, eye, empty and their _like forms."""
