"""Padding: constant, reflection, replication, circular."""
