"""Dumps: a compiled program as files, which run alone and which a bug report can attach."""
