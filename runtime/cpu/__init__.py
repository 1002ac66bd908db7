"""What PJRT on the CPU needs beside PJRT: memory, calls of Python from programs, signals."""
