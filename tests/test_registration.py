"""The backend is there with no import of ours, and `import torch` does not pay for it."""

import ast
import os
import subprocess
import sys
import textwrap

import pytest


def python(code: str, **env: str) -> str:
    """Run code in a fresh interpreter and return what it printed."""
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_by_name():
    out = python("""
        import torch
        print('openxla' in torch._dynamo.list_backends())
        f = torch.compile(lambda x: x.relu() + 1, backend="openxla", fullgraph=True)
        print(f(torch.tensor([-1.0, 2.0])).tolist())
        f = torch.compile(lambda x: x + 1, backend="openxla", options={"constant_limit": 8})
        print(f(torch.tensor([1.0])).tolist())
    """)
    assert out.splitlines() == ["True", "[1.0, 3.0]", "[2.0]"]


def test_import_torch_imports_neither_jax_nor_dynamo():
    out = python("""
        import sys, torch
        print([m for m in ("jax", "jaxlib", "torch._dynamo.backends.registry") if m in sys.modules])
    """)
    assert out == "[]"


def test_import_torch_is_not_slower():
    """What our entry point adds to `import torch`: well under 5 ms, of the processor and in all."""
    script = """
        import time
        import importlib.metadata, difflib, typing, types  # torch has these already
        start = time.perf_counter(), time.process_time()
        from xla_dynamo.registration import claim_openxla
        claim_openxla()
        print(time.perf_counter() - start[0], time.process_time() - start[1])
    """
    runs = [tuple(map(float, python(script).split())) for _ in range(3)]
    assert max(busy for _, busy in runs) < 0.005
    assert min(passed for passed, _ in runs) < 0.005  # the least: other tests have the cores, too


def test_the_entry_point_imports_only_its_own():
    """Our entry point imports nothing but its own few lines, beside what torch has already."""
    out = python("""
        import sys
        import importlib.metadata, difflib, typing, types  # torch has these already
        before = set(sys.modules)
        from xla_dynamo.registration import claim_openxla
        claim_openxla()
        print(sorted(set(sys.modules) - before))
    """)
    ours = ["xla_dynamo", "xla_dynamo.errors", "xla_dynamo.registration"]
    assert ast.literal_eval(out) == ["torch._dynamo.backends.torchxla", *ours]


def test_disabled_leaves_torch_alone():
    out = python(
        """
        import torch
        from torch._dynamo.backends.registry import lookup_backend
        print(lookup_backend("openxla").__module__)
        """,
        XLA_DYNAMO_DISABLE="1",
    )
    assert "xla_dynamo" not in out


@pytest.mark.parametrize("value", ["", "0"])
def test_not_disabled(value):
    out = python(
        """
        import torch
        from torch._dynamo.backends.registry import lookup_backend
        print(lookup_backend("openxla").__module__)
        """,
        XLA_DYNAMO_DISABLE=value,
    )
    assert out == "xla_dynamo.backend"


def test_torch_logs_name_the_package():
    """Torch imports every folder of the package for it, while it is being imported itself."""
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            "import torch\ntorch.compile(lambda x: x + 1, backend='openxla')(torch.ones(3))",
        ],
        env={**os.environ, "TORCH_LOGS": "+xla_dynamo"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "executable of graph 1" in result.stderr
    assert "stablehlo.add" in result.stderr
