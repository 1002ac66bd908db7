"""Forms that pay on the CPU alone: calls of its libraries, and convolutions as other operations."""
