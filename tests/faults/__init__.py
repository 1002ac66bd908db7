"""Mutation testing: put single faults into the package, and see which of them the suite finds.

It is our own since cosmic-ray runs the whole test command for each fault, which takes a quarter of
an hour here, while this runs the tests that reach the faulty line. Mutmut rewrites every function
into a trampoline with all its mutants, which Dynamo would trace and `inspect` would read, while
this changes the text of one node.
"""
