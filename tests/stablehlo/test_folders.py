"""Saved folders: damaged, foreign, of other versions; every program starts cold."""

import json
import shutil
import stat

import pytest
import torch
from jax.extend.mlir.dialects import stablehlo as hlo
from jax.interpreters.mlir import make_ir_context

import xla_dynamo
from tests.stablehlo.exporting import exported
from xla_dynamo.lowerings.builders.functions import operations_within
from xla_dynamo.stablehlo import (
    NumpyGraphModule,
    StableHLOGraphModule,
)
from xla_dynamo.stablehlo.modules import module_of

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
LOADERS = pytest.mark.parametrize("loader", [StableHLOGraphModule, NumpyGraphModule])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("saved") / "program"
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    exported(net, torch.randn(3, 4)).save(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy that may be damaged."""
    return shutil.copytree(saved, tmp_path / "program")


def _flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 0x40
    path.write_bytes(data)


@LOADERS
@pytest.mark.parametrize("name", ["module.mlirbc", "weights.safetensors"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "empty"])
def test_damaged_files(loader, name, damage, folder):
    path = folder / name
    if damage == "flip":
        _flip(path, path.stat().st_size // 2)
    elif damage == "remove":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:100] if damage == "cut" else b"")
    with pytest.raises(xla_dynamo.StorageError, match=r"damaged|cannot be|can be read"):
        loader.load(folder)


def _changed(described, path, value):
    *outer, last = path
    for key in outer:
        described = described[key]
    if value is None:
        del described[last]
    else:
        described[last] = value


@LOADERS
@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["format"], 99, "reads format 1"),
        (["kind"], "other", "not of an exported program"),
        (["sha256"], {}, "checksums"),
        (["signature"], None, "KeyError"),
        (["signature", "arguments", 0, "kind"], "other", "an argument is none of"),
        (["signature", "arguments", 0, "name"], "7", "an input that the tree"),
        (["signature", "outputs", 0, "result"], 5, "a result that the module has not"),
        (["signature", "inputs"], [], "an input that the tree"),
        (["signature", "input_tree", "items"], [], "number of leaves"),
        (["signature", "platform"], "tpu", "signature.json is damaged"),
        (["signature", "results", 0, "dtype"], 3, "is no text"),
        (["signature", "results", 0, "shape", 0, "terms"], [[["n"], 1]], "no dimensions"),
    ],
)
def test_changed_signatures(loader, path, value, message, folder):
    file = folder / "signature.json"
    described = json.loads(file.read_text())
    _changed(described, path, value)
    file.write_text(json.dumps(described))
    with pytest.raises(xla_dynamo.StorageError, match=message):
        loader.load(folder)


@LOADERS
def test_flips_in_the_signature(loader, folder):
    """A folder with a wrong byte is refused, or is what it was before."""
    file = folder / "signature.json"
    good = file.read_bytes()
    given = torch.randn(3, 4)
    x = given if loader is StableHLOGraphModule else given.numpy()
    right = torch.as_tensor(loader.load(folder)(x))
    for place in range(0, len(good), 37):
        _flip(file, place)
        try:
            module = loader.load(folder)
            result = module(x)
        except (xla_dynamo.XlaDynamoError, ValueError, TypeError):
            pass
        else:
            torch.testing.assert_close(torch.as_tensor(result), right)
        file.write_bytes(good)


@LOADERS
def test_foreign_folders(loader, tmp_path):
    with pytest.raises(xla_dynamo.StorageError, match="holds no exported program"):
        loader.load(tmp_path / "nothing")
    with pytest.raises(xla_dynamo.StorageError, match="holds no exported program"):
        loader.load(tmp_path)
    (tmp_path / "signature.json").write_text("[1, 2")
    with pytest.raises(xla_dynamo.StorageError, match="can be read"):
        loader.load(tmp_path)


def test_save_replaces_its_own_folder_alone(saved, tmp_path):
    module = StableHLOGraphModule.load(saved)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    with pytest.raises(xla_dynamo.StorageError, match="not overwritten"):
        module.save(tmp_path / "mine")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep me"
    for _ in range(2):
        module.save(tmp_path / "new")
    x = torch.randn(3, 4)
    torch.testing.assert_close(StableHLOGraphModule.load(tmp_path / "new")(x), module(x))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "new"]
    modes = {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "new").iterdir()}
    assert len(modes) == 1
    (tmp_path / "new" / "notes.txt").write_text("keep me")
    with pytest.raises(xla_dynamo.StorageError, match="not overwritten"):
        module.save(tmp_path / "new")
    assert (tmp_path / "new" / "notes.txt").read_text() == "keep me"


def test_save_in_the_working_folder_and_through_a_link(saved, tmp_path, monkeypatch):
    module = StableHLOGraphModule.load(saved)
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    for name in (".", tmp_path / "link"):
        module.save(name)
        StableHLOGraphModule.load(tmp_path / "here")
        assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("version", ["1.0.0", "1.4.0", hlo.get_current_version()])
def test_versions(version, saved, tmp_path):
    """StableHLO's own reader takes an artifact of an older version, and so does `load`."""
    module = StableHLOGraphModule.load(saved)
    artifact = module.get_stablehlo_bytecode(version=version)
    assert f"StableHLO_v{version}".encode() in artifact[:32]
    with make_ir_context() as context:
        assert "stablehlo.dot_general" in str(hlo.deserialize_portable_artifact(context, artifact))
    module.save(tmp_path / "old", version)
    x = torch.randn(3, 4)
    torch.testing.assert_close(StableHLOGraphModule.load(tmp_path / "old")(x), module(x))
    described = json.loads((tmp_path / "old" / "signature.json").read_text())
    assert described["versions"]["stablehlo"] == version


@pytest.mark.parametrize(
    ("version", "message"),
    [("0.1.0", "writes 0.9.0 to"), ("99.0.0", "writes"), ("new", "writes"), ("0.9.0", "composite")],
)
def test_versions_that_cannot_be(version, message, saved):
    module = StableHLOGraphModule.load(saved)  # its GELU is a composite, which 0.9.0 has not
    with pytest.raises(xla_dynamo.StorageError, match=message):
        module.get_stablehlo_bytecode(version=version)


def test_pure_stablehlo(saved):
    """Nothing of our libraries, nor another dialect, is in what is exported."""
    module = StableHLOGraphModule.load(saved)
    found = {op.name for op in operations_within(module_of(module.get_stablehlo_bytecode()))}
    assert {name.split(".")[0] for name in found} == {"builtin", "func", "stablehlo"}
    assert "stablehlo.custom_call" not in found
    assert module.signature.custom_calls == ()
