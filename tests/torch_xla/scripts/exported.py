"""A model exported to StableHLO, and a checkpoint that is read again."""

import os
import sys
import tempfile

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.utils.serialization as xser
from torch_xla.amp import autocast
from torch_xla.stablehlo import (
    StableHLOGraphModule,
    exported_program_to_stablehlo,
    save_torch_model_as_stablehlo,
)

model, x = torch.nn.Linear(4, 3).eval(), torch.randn(2, 4)
shlo = exported_program_to_stablehlo(torch.export.export(model, (x,)))
assert "stablehlo.dot_general" in shlo.get_stablehlo_text("forward")
with tempfile.TemporaryDirectory() as folder:
    save_torch_model_as_stablehlo(model, (x,), os.path.join(folder, "model"))
    torch.testing.assert_close(
        StableHLOGraphModule.load(os.path.join(folder, "model"))(x), model(x)
    )
    model.to(torch_xla.device())
    xm.save(model.state_dict(), os.path.join(folder, "state.pt"))
    xser.save(model.state_dict(), os.path.join(folder, "again.pt"))
    state = torch.load(os.path.join(folder, "state.pt"))
    assert torch.equal(state["weight"], xser.load(os.path.join(folder, "again.pt"))["weight"])
    assert state["weight"].device.type == "cpu"
with autocast(xm.xla_device()):
    assert model(x.to(torch_xla.device())).dtype == torch.bfloat16
print("ended", sys.argv[1:])
