"""Runs one load: prepares it, says `ready`, waits for `go`, prints one line of JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.clients import (
    amqp,
    facade,
    http,
    kafka,
    kafka_raw,
    nats,
    queue,
    rabbitmq,
    redis,
    shapes,
    transactions,
)

Run = Callable[[], dict[str, Any]]
LOADS: dict[str, Callable[[dict[str, Any]], Run]] = {
    **amqp.LOADS,
    **facade.LOADS,
    **http.LOADS,
    **kafka.LOADS,
    **kafka_raw.LOADS,
    **nats.LOADS,
    **queue.LOADS,
    **rabbitmq.LOADS,
    **redis.LOADS,
    **shapes.LOADS,
    **transactions.LOADS,
}


def main() -> None:
    kind, spec = sys.argv[1], json.loads(sys.argv[2])
    run = LOADS[kind](spec)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    if sys.stdin.readline() != "go\n":
        raise SystemExit("the harness went away")
    sys.stdout.write(json.dumps(run()) + "\n")
    sys.stdout.flush()
    # The harness reads this process's CPU clock before it closes the pipe.
    sys.stdin.read()
    # Clients with threads of their own may take seconds to close; the load is over.
    os._exit(0)


main()
