"""One command that tries everything on a GPU that is there for some minutes only."""
