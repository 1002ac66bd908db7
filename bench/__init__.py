"""Programs that measure: each is a file of this folder."""

from bench.torchvision_operators import declare_missing_operators

declare_missing_operators()  # before a program imports transformers, which imports torchvision
