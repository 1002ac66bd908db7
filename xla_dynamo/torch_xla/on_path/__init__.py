"""A folder for `sys.path`: processes that a script starts find `torch_xla` there."""
