"""What all clients of a simulated world share: its history, its end, and what went wrong."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sim.clients.wire import Kafka
from sim.history import History
from sim.network import Network
from sim.process import ClientProcess
from sim.scheduler import Scheduler


class Violation(Exception):
    """Something happened that must never happen."""


class Scene:
    """Given to each client."""

    def __init__(
        self,
        scheduler: Scheduler,
        network: Network,
        seed: str,
        bootstrap: Sequence[tuple[str, int]],
        histories: Path | None = None,
    ) -> None:
        """`histories`: the folder for them; None: they are kept in memory."""
        self.scheduler = scheduler
        self._histories = histories
        self.history = self.new_history("logs")
        self.counts: Counter[str] = Counter()
        self.is_over = False
        """No new work is begun; what was begun is finished, and then clients end."""
        self.healed_at = float("inf")
        """When no fault was left."""
        self.found: list[str] = []
        self._network = network
        self._seed = seed
        self._bootstrap = bootstrap
        self.processes: list[ClientProcess] = []

    def new_history(self, name: str) -> History:
        """Of clients that are judged on their own."""
        path = self._histories / name if self._histories is not None else None
        return History(self.scheduler, path)

    def violation(self, text: str) -> None:
        """Ends the world."""
        self.found.append(text)

    def count(self, what: str, times: int = 1) -> None:
        self.counts[what] += times

    def process(self, name: str) -> ClientProcess:
        """A new one, on a host of its own."""
        number = len(self.processes) + 1
        address = f"10.1.{number // 250}.{number % 250 + 1}"
        process = ClientProcess(name, address, self.scheduler, self._network, self._seed)
        self.processes.append(process)
        return process

    def kafka(self, process: ClientProcess) -> Kafka:
        """A client for that process."""
        rng = random.Random(f"{self._seed}/{process.name}/kafka")
        return Kafka(process.name, self._bootstrap, rng)

    async def pause(self, rng: random.Random, seconds: float) -> None:
        """For about so long."""
        await asyncio.sleep(seconds * (0.5 + rng.random()))

    def add(self, op: str, **fields: Any) -> None:
        self.history.add(op, **fields)
