"""Reads and writes at computed places: index, gather, scatter, embedding."""
