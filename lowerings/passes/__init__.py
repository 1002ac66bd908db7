"""Passes over a whole module: StableHLO to StableHLO.

A pass rewrites a module in place for a target. Its docstring says what it assumes of the module and
what it leaves as it is. `table` lists the passes in their order, and `manager` runs them.
"""
