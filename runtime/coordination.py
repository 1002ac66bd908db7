"""A process beside a job's: PJRT's coordination service, and what knows who is there.

The first process of a job starts it (`python -m xla_dynamo.runtime.coordination`), and it lives
until all have left: PJRT ends every process whose coordination service has gone, so it must not die
with one of them.
"""

import argparse
import json
import os
import sys
import threading
import time
from multiprocessing.connection import Listener

from xla_dynamo.runtime.jaxlib_private import start_coordination_service
from xla_dynamo.runtime.processes.coordinator import TICK, Coordinator, accept


def main() -> None:
    """Serve until all processes have left.

    Reads the key of its connections from the standard input, whose end tells that the process is
    gone that started this one. Writes the ports that it listens at as JSON.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", type=int, help="the number of processes")
    parser.add_argument("patience", type=float, help="the seconds that one may be late")
    parser.add_argument("host", help="the address to listen at")
    given = parser.parse_args()
    key = bytes.fromhex(sys.stdin.readline())
    coordinator = Coordinator(given.size, given.patience)
    listener = Listener((given.host, 0), backlog=given.size + 8, authkey=key)
    threading.Thread(target=accept, args=(listener, coordinator), daemon=True).start()
    threading.Thread(target=coordinator.watch, daemon=True).start()
    service, port = start_coordination_service(given.host, given.size)
    print(json.dumps({"connections": listener.address[1], "service": port}), flush=True)
    sys.stdin.read()
    time.sleep(TICK)
    while coordinator.has_company():
        time.sleep(TICK)
    assert service
    os._exit(0)  # the service would wait for processes that were killed


if __name__ == "__main__":
    main()
