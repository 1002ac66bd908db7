"""The examples of docs/processes.md, as a user would run them."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
BLOCKS = re.findall(
    r"^```python\n(.*?)^```$",
    (ROOT / "docs" / "processes.md").read_text(),
    re.MULTILINE | re.DOTALL,
)
EXAMPLES = [block for block in BLOCKS if "__main__" in block]
PRINTED = [
    r"^2 processes, loss \d+\.\d+$",
    r"^4 parameters in sharded-_consolidated\.pth$",
    r"^from step 0, loss \d+\.\d+, \[10, 20\]$",
]


@pytest.mark.parametrize(
    ("example", "printed"),
    list(zip(EXAMPLES, PRINTED, strict=True)),
    ids=["launch", "fully sharded", "checkpoints"],
)
def test_example(tmp_path, example, printed):
    (tmp_path / "train.py").write_text(example)
    environment = {**os.environ, "XLA_DYNAMO_CACHE_DIR": str(tmp_path / "cache")}
    ended = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert re.search(printed, ended.stdout, re.MULTILINE), ended.stderr
