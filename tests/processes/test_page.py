"""The example of docs/processes.md, as a user would run it."""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def test_example(tmp_path):
    page = (ROOT / "docs" / "processes.md").read_text()
    example = re.search(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1]
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
    assert re.search(r"^2 processes, loss \d+\.\d+$", ended.stdout, re.MULTILINE), ended.stderr
