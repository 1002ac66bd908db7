"""ATen operators to StableHLO: the table of rules, and what rewrites their modules."""

from xla_dynamo.lowerings.rules import FAMILIES
from xla_dynamo.lowerings.table import TABLE, Context, find_refusal, find_rule, lowers

__all__ = ["FAMILIES", "TABLE", "Context", "find_refusal", "find_rule", "lowers"]
