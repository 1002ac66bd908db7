"""How long a job's processes take to agree before a program, by their number.

`python -m bench.agreement` starts a job's coordinator for each number, and plays all processes in
one: it sends what each would, and reads the answers. So the time is the coordinator's, and that of
one process which does the work of all; real processes send at once, each from a machine of its own.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from multiprocessing.connection import Client, Connection

from bench.timing import positive


def main() -> None:
    """Print milliseconds an agreement, and what a process needs of the coordinator's host."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.agreement",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--processes", type=positive, nargs="+", default=[2, 8, 64, 256, 1000])
    parser.add_argument("--rounds", type=positive, default=30)
    given = parser.parse_args()
    print("processes  ms an agreement  ms to join all")
    for count in given.processes:
        joining, agreeing = measure(count, given.rounds)
        print(f"{count:9}  {1e3 * agreeing:15.2f}  {1e3 * joining:14.0f}")


def measure(count: int, rounds: int) -> tuple[float, float]:
    """Seconds until all of so many processes have joined, and seconds an agreement."""
    command = [sys.executable, "-m", "xla_dynamo.runtime.coordination", str(count), "600"]
    with subprocess.Popen(
        [*command, "127.0.0.1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as coordinator:
        assert coordinator.stdin is not None
        assert coordinator.stdout is not None
        key = b"a key"
        print(key.hex(), file=coordinator.stdin, flush=True)
        port = json.loads(coordinator.stdout.readline())["connections"]
        start = time.perf_counter()
        connections = [Client(("127.0.0.1", port), authkey=key) for _ in range(count)]
        for rank, connection in enumerate(connections):
            connection.send((rank, ""))
        times = [agree(connections) for _ in range(rounds + 1)]
        joining = time.perf_counter() - start - sum(times[1:])
        for connection in connections:
            connection.send(("bye",))
            connection.close()
        coordinator.stdin.close()
    return joining, statistics.median(times[1:])


def agree(connections: list[Connection]) -> float:
    """The seconds in which all have come to a program, and have heard that all have."""
    digest = b"d" * 64
    start = time.perf_counter()
    for connection in connections:
        connection.send(("exchange", (), "the program", digest, b""))
    for connection in connections:
        kind, _ = connection.recv()
        assert kind == "done"
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
