"""Support for programs on the CPU: the allocator, calls of Python from programs, signals."""
