"""A simulated process that is not a broker: a client on a host of its own."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

from sim.loop import SimLoop
from sim.network import Network, SimSocket
from sim.scheduler import Scheduler


def _place(awaited: Any) -> str:
    """The innermost frames of what a coroutine waits for."""
    places = []
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            name = frame.f_code.co_filename.rpartition("/")[2]
            places.append(f"{name}:{frame.f_lineno}")
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return " > ".join(places)


class ClientProcess:
    """Runs coroutines until it is killed."""

    def __init__(self, name: str, address: str, scheduler: Scheduler, network: Network, seed: str):
        self.name = name
        self.address = address
        self._network = network
        host = network.host(address)
        self.host = host
        self.rng = random.Random(f"{seed}/{name}")
        loop = self.loop = SimLoop(scheduler, random.Random(f"{seed}/{name}/loop"), name)
        loop.new_socket = lambda: SimSocket(network, host, loop)
        loop.on_exception = self._failed
        self.failures: list[BaseException] = []
        self._tasks: list[asyncio.Task[Any]] = []

    def run(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = self.loop.begin(work)
        task.add_done_callback(self._ended)
        self._tasks.append(task)
        return task

    @property
    def is_done(self) -> bool:
        return all(task.done() for task in self._tasks)

    def waits_at(self) -> list[str]:
        """Where each coroutine that has not ended stands, for people."""
        return [_place(task.get_coro()) for task in self._tasks if not task.done()]

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures.append(error)

    def _failed(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception):
            self.failures.append(error)

    def kill(self) -> None:
        self._network.process_ended(self.host, is_power_cut=False)
        self.loop.die()
