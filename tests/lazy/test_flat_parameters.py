"""A module with one flat parameter computes, trains, saves and loads as the module itself."""

import copy
import pickle

import pytest
import torch
from torch import nn

from xla_dynamo.torch_xla.forms.flat_parameters import (
    FlatParameter,
    XlaFlattenParamsWrapper,
    replace_by_prefix_,
)


def tied():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3), nn.Linear(3, 2))
    model[2].weight = model[0].weight
    return model


def test_it_trains_as_the_module():
    right = tied()
    ours = XlaFlattenParamsWrapper(copy.deepcopy(right).to("xla"))
    assert [name for name, _ in ours.named_parameters()] == ["flat_param_0"]
    assert ours.flat_param.numel() == sum(p.numel() for p in right.parameters())
    assert ours.num_params_managed == len(list(right.parameters()))
    x = torch.randn(4, 3)
    for model in (right, ours):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(x.to(next(model.parameters()).device)).pow(2).sum().backward()
            optimizer.step()
    state, expected = ours.state_dict(), right.state_dict()
    assert set(state) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(state[name].cpu(), value)
    names, shapes, numels = ours.metadata(0)
    assert names[0] == "0.weight"
    assert shapes[0] == (3, 3)
    assert numels[0] == 9
    assert ours[0] is ours.module[0]


def test_it_is_saved_and_loaded():
    right = tied()
    outer = nn.Sequential(XlaFlattenParamsWrapper(tied()))
    outer.load_state_dict({f"0.{name}": value for name, value in right.state_dict().items()})
    x = torch.randn(4, 3)
    right.eval(), outer.eval()
    assert torch.equal(outer(x), right(x))
    flat = outer[0].flat_state_dict()
    assert "flat_param_0" in flat
    assert "0.weight" not in flat
    assert "1.running_mean" in flat
    another = XlaFlattenParamsWrapper(tied()).eval()
    another.load_state_dict(flat)
    for same in (another, copy.deepcopy(another), pickle.loads(pickle.dumps(another.flat_param))):
        if isinstance(same, FlatParameter):
            assert torch.equal(same, another.flat_param)
            assert same.metadata() == another.flat_param.metadata()
        else:
            assert torch.equal(same(x), right(x))
    with another.unflatten_params():
        assert isinstance(another.module[0].weight, nn.Parameter)
        assert another.module[2].weight is another.module[0].weight
        with torch.no_grad():
            another.module[3].bias.add_(1)
    torch.testing.assert_close(another(x), right(x) + 1)
    assert [name for name, _ in another.named_parameters()] == ["flat_param_0"]


def test_groups_and_errors():
    model = tied()
    groups = [[model[0].weight], [model[3].weight, model[3].bias]]
    ours = XlaFlattenParamsWrapper(model, groups, ["a", "b"])
    assert [p.numel() for p in ours.flat_params] == [9, 8]
    assert "0.bias" in ours.state_dict()
    assert len(list(ours.get_param_views())) == 3
    fresh = tied()
    with pytest.raises(ValueError, match="two groups"):
        XlaFlattenParamsWrapper(fresh, [[fresh[0].weight], [fresh[2].weight]])
    with pytest.raises(ValueError, match="different names"):
        XlaFlattenParamsWrapper(fresh, [[fresh[0].weight]], ["a", "b"])
    fresh[0].bias.requires_grad_(False)
    with pytest.raises(ValueError, match="one dtype"):
        XlaFlattenParamsWrapper(fresh)
    with pytest.raises(ValueError, match="flat already"):
        FlatParameter([ours.flat_params[0]])
    for wrong in ([], [3]):
        with pytest.raises(ValueError, match="is made of"):
            FlatParameter(wrong)
    with pytest.raises(ValueError, match="2 elements"):
        ours.flat_params[0].get_param_views(torch.ones(2))
    with pytest.raises(ValueError, match="both prefixes"):
        replace_by_prefix_({}, "a", "a")
