"""Leave out what torch does at each seed and each sample of its databases, and nobody here reads.

`torch.manual_seed` notes a call for each kind of accelerator, with the stack as text, for the day
that one is initialized: three stacks a seed, all of them kept. And each sample of an operator looks
for a `unittest.TestCase` in the stack, by the sources of all its frames. Both together were a third
of the time of the sweeps.
"""

import torch
from torch.testing._internal import common_utils


def _lazily(*_, **__):
    """In the place of torch's notes, where there is no such accelerator."""


for module, kind in ((torch.cuda.random, "cuda"), (torch.xpu.random, "xpu"), (torch.mtia, "mtia")):
    if not getattr(torch, kind).is_available():
        module._lazy_call = _lazily
common_utils.extract_test_fn = lambda: None
