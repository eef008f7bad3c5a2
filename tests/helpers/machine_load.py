"""A steady producer as a process, for machines that the tests themselves cannot connect to.

    machine_load.py BOOTSTRAP TOPIC PARTITIONS FILE

FILE: JSON with the settings of Kafka clients, to log in.

It says how much was acknowledged, and after SIGTERM, in one line of JSON, what went wrong.
"""

import json
import signal
import sys
import threading
from pathlib import Path
from typing import Final

from steady_load import SteadyLoad

from faults.checker import check

_TELL_SECONDS: Final = 0.2


def main() -> None:
    bootstrap, topic, partitions, file = sys.argv[1:]
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    load = SteadyLoad(bootstrap, topic, int(partitions), json.loads(Path(file).read_text()))
    with load:
        while not ended.wait(_TELL_SECONDS):
            print(f"acknowledged {load.acked}", flush=True)
    load.read_all()
    wrong = {str(kind): found for kind, found in check(load.events).examples.items()}
    print(json.dumps({"acknowledged": load.acked, "failures": load.failures, "wrong": wrong}))


if __name__ == "__main__":
    main()
