"""Runs in a pod: a steady load with acks=all, until it is told to stop; then what became of it.

usage: kubernetes_load.py SETTINGS, a JSON object with bootstrap, topic, partitions and the
properties of a client. SIGTERM has all read and printed.
"""

import json
import signal
import sys
import threading

from steady_load import SteadyLoad


def main(bootstrap: str, topic: str, partitions: int, properties: dict[str, str]) -> None:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    with SteadyLoad(bootstrap, topic, partitions, properties) as load:
        while not stopping.wait(0.5):
            print(json.dumps({"acked": load.acked, "failures": load.failures}), flush=True)
    load.read_all()
    found = {"acked": load.acked, "failures": load.failures, "events": load.events}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
