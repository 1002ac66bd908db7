"""Processes that start at once on an empty disk cache, and those that come later."""

import json
import subprocess
import sys

from tests.runtime.disk_caches import cache_in, check

# Each process is forked before anything of PJRT exists, waits for the others, and compiles.
_PROCESSES = """
import json, os, sys
from tests.runtime.disk_caches import check
from xla_dynamo import metrics, runtime

folder, processes = sys.argv[1], int(sys.argv[2])
start, ready = os.pipe()

def run(number):
    os.close(ready)
    os.read(start, 1)  # returns for all at once, when the parent closes its end
    runtime.initialize_cache(folder)
    for operation in ("add", "multiply"):
        check(operation)
    names = ("PersistentCacheHit", "PersistentCacheMiss", "PersistentCacheDamagedEntry")
    line = json.dumps([metrics.counter_value(n) or 0 for n in names]) + "\\n"
    os.write(1, line.encode())  # at once: the others write to the same pipe

children = []
for number in range(processes):
    child = os.fork()
    if not child:
        code = 1
        try:
            run(number)
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    children.append(child)
os.close(ready)
print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children]), flush=True)
"""


def _run(folder, processes):
    """Of so many processes at once: their hits, misses and damaged entries."""
    command = [sys.executable, "-c", _PROCESSES, str(folder), str(processes)]
    run = subprocess.run(command, capture_output=True, text=True)
    *found, codes = map(json.loads, run.stdout.splitlines())
    assert codes == [0] * processes, run.stderr[-2000:]
    assert "disk cache" not in run.stderr
    return found


def test_processes_that_start_at_once(tmp_path):
    found = _run(tmp_path, 8)
    assert len(found) == 8
    assert all(hits + misses == 2 and damaged == 0 for hits, misses, damaged in found)
    entries = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    assert len(entries) == 2  # one copy of each, and nothing else
    with cache_in(tmp_path, readonly=True):  # what they wrote is good for another process
        assert check("add")
        assert check("multiply")
    assert {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()} == entries
