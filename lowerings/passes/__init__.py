"""StableHLO to StableHLO: what is rewritten in a module when all of it is there."""
