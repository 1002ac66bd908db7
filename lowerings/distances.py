"""Pairwise distances."""
