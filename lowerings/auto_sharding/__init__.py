"""Find how the inputs of a program are best sharded, by what Shardy makes of each choice."""
