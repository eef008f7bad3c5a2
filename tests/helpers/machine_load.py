"""A steady producer as a process, for where the tests themselves cannot connect: machines, pods.

    machine_load.py SETTINGS

SETTINGS: a JSON object with bootstrap, topic, partitions, and the settings of a Kafka client.

It prints how much is acknowledged; after SIGTERM it reads all, and prints the history of it.
"""

import json
import signal
import sys
import threading

from steady_load import SteadyLoad


def main(bootstrap: str, topic: str, partitions: int, settings: dict[str, str]) -> None:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    with SteadyLoad(bootstrap, topic, partitions, settings) as load:
        while not stopping.wait(0.5):
            print(json.dumps({"acked": load.acked, "failures": load.failures}), flush=True)
    load.read_all()
    found = {"acked": load.acked, "failures": load.failures, "events": load.events}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
