"""Export functions and modules in one line."""

import torch

from xla_dynamo.stablehlo import exported_program_to_stablehlo


class Function(torch.nn.Module):
    """A function as a module, as torch.export wants it."""

    def __init__(self, f):
        super().__init__()
        self._f = f

    def forward(self, *args, **kwargs):
        """Call the function."""
        return self._f(*args, **kwargs)


def exported(model, *args, options=None, kwargs=None, **settings):
    """A model as StableHLO, exported with these inputs."""
    program = torch.export.export(model.eval(), args, kwargs, **settings)
    return exported_program_to_stablehlo(program, options)
