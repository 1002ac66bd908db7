"""Models for the tests of commands, in a module that fresh processes import, too."""

MODELS = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x, *, scale=1.0):
        return self.linear(x).relu() * scale

def example():
    return Model(), (torch.randn(3, 8),), {"scale": 2.0}

def lookup(table, places):
    return table[places]

def wave(x):
    return x.sin() * 2

def step():
    import xla_dynamo
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return xla_dynamo.train_step(model, lambda y: y.sum(), optimizer), (torch.ones(2, 8),)

def both(batch, *, scale):
    return {"doubled": batch["x"] * 2, "scaled": batch["y"] * scale}

def nested():
    return both, ({"x": torch.ones(2), "y": torch.ones(3)},), {"scale": torch.tensor(2.0)}

def looked_up():
    return lambda x: x.nonzero(), (torch.ones(3),)

def broken(x):
    torch._dynamo.graph_break()
    raise KeyError("gone")

def compiled():
    options = {"libraries": ["torch"]}
    return torch.compile(Model().eval(), backend="openxla", options=options), (torch.ones(3, 8),)

def bare():
    return Model(), torch.ones(3, 8)

def nothing():
    return 3

number = 3
"""
