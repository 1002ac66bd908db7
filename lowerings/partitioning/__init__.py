"""Partitioning: from a program over a mesh to what each of its devices computes.

`partition` runs Shardy, which finds how each value is sharded. `local_operations` gives the
operations the shapes of shards, and `local_collectives` the collectives their groups.
"""
