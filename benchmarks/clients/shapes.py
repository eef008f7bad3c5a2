"""Shapes of the OpenMessaging benchmark: many keyed producers, a fixed rate, a backlog drained."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks.clients.kafka_raw import fetch, fetch_once
from benchmarks.clients.pump import LoadError, connect
from benchmarks.keyed import KeyedProducers
from benchmarks.latencies import summary

FLUSH_SECONDS_MAX = 60.0
DRAIN_SECONDS_MAX = 90.0


def keyed_producers(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """As fast as all is acknowledged, each producer with few messages in flight."""
    producers = KeyedProducers(spec, with_latencies=False)

    def run() -> dict[str, Any]:
        begun = time.perf_counter()
        sent, size = producers.send_all(spec["count"], spec["chunk"], spec["pending_max"])
        producers.flush(FLUSH_SECONDS_MAX)
        wall = time.perf_counter() - begun
        return {"wall_s": wall, "messages": sent, "bytes": size}

    return run


def paced(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """A fixed rate for `seconds`: latencies from the call until the acknowledgement."""
    producers = KeyedProducers(spec, with_latencies=True)

    def run() -> dict[str, Any]:
        begun = time.perf_counter()
        sent, size = producers.send_paced(spec["rate"], spec["seconds"])
        producers.flush(FLUSH_SECONDS_MAX)
        wall = time.perf_counter() - begun
        return {
            "wall_s": wall,
            "messages": sent,
            "bytes": size,
            "histogram": producers.latencies,
            **summary(producers.latencies),
        }

    return run


def drain(spec: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Readers take `count` messages from the start while producers go on at a fixed rate.

    What is reported as moved is what was read; the latencies are those of the producers.
    """
    producers = KeyedProducers(spec, with_latencies=True)
    readers = spec["readers"]
    socks = [connect(spec["port"]) for _ in range(readers)]
    seen = [0] * readers
    failures: list[BaseException] = []
    stopped = threading.Event()

    def read(number: int, deadline: float) -> None:
        offsets = dict.fromkeys(range(number, spec["partitions"], readers), 0)
        try:
            while sum(seen) < spec["count"]:
                seen[number] += fetch_once(socks[number], spec, offsets)
                if failures or time.perf_counter() > deadline:
                    raise LoadError(f"{sum(seen)} of {spec['count']} messages were read")
        except BaseException as error:
            failures.append(error)

    def write() -> None:
        try:
            producers.send_paced(spec["rate"], DRAIN_SECONDS_MAX, stopped)
        except BaseException as error:
            failures.append(error)

    def run() -> dict[str, Any]:
        begun = time.perf_counter()
        deadline = begun + DRAIN_SECONDS_MAX
        writer = threading.Thread(target=write)
        threads = [threading.Thread(target=read, args=(at, deadline)) for at in range(readers)]
        for thread in [writer, *threads]:
            thread.start()
        for thread in threads:
            thread.join()
        wall = time.perf_counter() - begun
        stopped.set()
        writer.join()
        producers.flush(FLUSH_SECONDS_MAX)
        if failures:
            raise LoadError(str(failures[0]))
        moved = sum(seen)
        latencies = summary(producers.latencies)
        return {"wall_s": wall, "messages": moved, "bytes": moved * spec["size"], **latencies}

    return run


LOADS = {
    "kafka-keyed": keyed_producers,
    "kafka-paced": paced,
    "kafka-drain": drain,
    "kafka-fetch-cold": fetch,
}
