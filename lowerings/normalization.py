"""Batch, group and layer norm as whole operators."""
