"""Rules of control flow, collectives, shardings and regions."""
