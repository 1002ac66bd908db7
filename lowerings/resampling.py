"""Upsampling, grid sampling, and other interpolation."""
