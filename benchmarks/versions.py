"""`python -m benchmarks.versions PATH`: what a small request costs here, against another checkout.

One broker of each is alive all the time, on one core. One client loads them in turns, in the order
A B B A, so what the machine does besides hits both. What is compared is their CPU time. A process
of one version differs from the next by some percent, by where its memory lies: so each round starts
new ones, and what counts is the median of the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import servers
from benchmarks.bench import topic
from benchmarks.clients.kafka_raw import small_requests
from benchmarks.harness import ROOT, free_port, workspace

LOAD = {"size": 100, "connections": 8, "in_flight": 5, "partitions": 8, "acks": -1}
TURN_REQUESTS = 10_000
SCRAPE_S = 5.0


class Side:
    """A broker of one checkout, with its load."""

    def __init__(self, running: servers.Running, http_port: int, is_scraped: bool) -> None:
        self._running = running
        self._url = f"http://127.0.0.1:{http_port}/metrics"
        self._is_scraped = is_scraped
        self._unscraped_s = 0.0
        self.cpu_us: list[float] = []

    def prepare(self, name: str) -> None:
        spec: dict[str, Any] = {**LOAD, "port": self._running.port, "topic": name}
        self._load: Callable[[], dict[str, Any]] = small_requests({**spec, "count": TURN_REQUESTS})
        self._load()
        if self._is_scraped:
            # The first request of all takes 70 ms, whatever it asks for: it completes the server.
            self._scrape()

    def _scrape(self) -> None:
        urllib.request.urlopen(self._url, timeout=10).read()

    def turn(self) -> None:
        """A scrape belongs to the turn in which this broker was under load for another 5 s."""
        before = self._running.server.cpu_seconds()
        self._unscraped_s += self._load()["wall_s"]
        if self._is_scraped and self._unscraped_s >= SCRAPE_S:
            self._unscraped_s -= SCRAPE_S
            self._scrape()
        self.cpu_us.append((self._running.server.cpu_seconds() - before) * 1e6 / TURN_REQUESTS)


@contextlib.contextmanager
def side(source: Path, name: str, directory: Path, flush: str, is_scraped: bool) -> Iterator[Side]:
    http_port = free_port()
    code = (
        f"import os, sys; os.sched_setaffinity(0, {{0}}); sys.path.insert(0, {str(source)!r}); "
        "import moldau.__main__"
    )
    running = servers.start_moldau(
        directory,
        flush=flush,
        name=name,
        launcher=[sys.executable, "-c", code],
        settings={"MOLDAU_HTTP__ADDR": f"127.0.0.1:{http_port}"},
    )
    try:
        with topic(running, LOAD["partitions"]) as created:
            found = Side(running, http_port, is_scraped)
            found.prepare(created)
            yield found
    finally:
        running.server.stop()


def measure(options: argparse.Namespace) -> tuple[float, float]:
    """CPU per request in one round, of the other version and of this one."""
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(workspace())
        old, new = (
            stack.enter_context(
                side(source, name, directory, options.flush, options.scrape in ("both", name))
            )
            for name, source in (("old", options.other / "src"), ("new", ROOT / "src"))
        )
        for number in range(options.turns):
            for one in (old, new) if number % 2 else (new, old):
                one.turn()
    return statistics.fmean(old.cpu_us), statistics.fmean(new.cpu_us)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, help="a checkout with another version")
    parser.add_argument("--flush", default="never", choices=("never", "always"))
    parser.add_argument("--rounds", type=int, default=9, help="default: 9")
    parser.add_argument("--turns", type=int, default=20, help="of each broker in a round")
    parser.add_argument("--scrape", default="none", choices=("none", "both", "new", "old"))
    options = parser.parse_args()
    # A signal that ends the run leaves no brokers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    os.sched_setaffinity(0, {(os.cpu_count() or 1) - 1})
    ratios = []
    for number in range(options.rounds):
        old, new = measure(options)
        ratios.append(new / old)
        print(
            f"{number + 1}: {old:.2f} → {new:.2f} µs CPU per request, {new / old:.3f}", flush=True
        )
    print(
        f"flush={options.flush}, scraped: {options.scrape}. Median of {options.rounds} rounds: "
        f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    )


if __name__ == "__main__":
    main()
