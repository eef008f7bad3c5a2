"""A whole broker for targets: simulated, with real protocol servers, in this process.

Targets talk to it over simulated sockets, as any client does. They look at no reply: what counts is
that the broker logs no error, does not end, and comes to rest. A mistake in a handler is caught by
the broker and logged; here it becomes a finding.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, Final

from moldau.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from sim.clients.wire import Kafka
from sim.cluster import GRPC_PORT, HTTP_PORT, KAFKA_PORT, RAFT_PORT, Cluster
from sim.plan import Plan
from sim.process import ClientProcess

__all__ = ["GRPC_PORT", "HTTP_PORT", "KAFKA_PORT", "RAFT_PORT", "FuzzedBroker"]

_EVENTS_MAX: Final = 50_000
"""Of the simulation, for one conversation."""
_REPLY_SECONDS: Final = 2.0
"""Virtual ones: a client that gets no reply leaves."""
_PIECE_SECONDS: Final = 0.005
_TOPICS: Final[dict[str, dict[str, str]]] = {
    "a": {},
    "c": {"cleanup.policy": "compact"},
    "z": {"compression.type": "zstd", "message.timestamp.type": "LogAppendTime"},
}
"""Seeds name `a`; mutations find the others."""
_LOGGERS: Final = ("moldau", "uvicorn.error", "asyncio")


class BrokerError(Exception):
    """The broker logged an error, or ended."""


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record)


class FuzzedBroker:
    """One broker, made at the first conversation."""

    def __init__(self) -> None:
        self._cluster: Cluster | None = None
        self._errors = _Errors()
        self._clients = 0
        self._loggers: list[tuple[logging.Logger, int, bool]] = []
        """As they were before."""

    # ---- its life

    def _begin(self) -> Cluster:
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            self._loggers.append((logger, logger.level, logger.propagate))
            logger.setLevel(logging.ERROR)
            logger.propagate = False
            logger.addHandler(self._errors)
        cluster = self._cluster = Cluster(Plan(seed=1, brokers=1, replication=1, queue_workers=1))
        (node,) = cluster.nodes
        cluster.start(node)
        self._run_until(lambda: node.is_ready)
        kafka = Kafka("topics", [(node.address, KAFKA_PORT)], random.Random(1))
        self._talk(_create_topics(kafka))
        self._check()
        return cluster

    def reset(self) -> None:
        """End it; the next conversation begins from scratch."""
        cluster, self._cluster = self._cluster, None
        self._errors.found.clear()
        while self._loggers:
            logger, level, propagates = self._loggers.pop()
            logger.removeHandler(self._errors)
            logger.setLevel(level)
            logger.propagate = propagates
        if cluster is not None:
            for process in cluster.scene.processes:
                process.kill()
            for node in cluster.nodes:
                node.kill()

    # ---- conversations

    def send(self, port: int, pieces: Iterable[bytes], *, waits: bool = True) -> None:
        """Send the pieces on one connection, one after another. Raises what went wrong."""
        cluster = self._cluster or self._begin()
        self._talk(_send(cluster.nodes[0].address, port, list(pieces), waits=waits))
        self._check()

    def converse(self, port: int, pieces: Iterable[bytes]) -> bytes:
        """Send the pieces without waiting in between; returns all that is sent back."""
        cluster = self._cluster or self._begin()
        received = bytearray()
        self._talk(_converse(cluster.nodes[0].address, port, list(pieces), received))
        self._check()
        return bytes(received)

    def _talk(self, work: Coroutine[Any, Any, None]) -> None:
        cluster = self._cluster
        assert cluster is not None
        self._clients += 1
        number = self._clients % 60_000
        address = f"10.2.{number // 250}.{number % 250 + 1}"
        process = ClientProcess(
            f"client-{number}", address, cluster.scheduler, cluster.network, "1"
        )
        task = process.run(work)
        self._run_until(task.done)
        process.kill()
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    def _run_until(self, is_done: Callable[[], bool]) -> None:
        assert self._cluster is not None
        scheduler = self._cluster.scheduler
        for _ in range(_EVENTS_MAX):
            if is_done():
                return
            if not scheduler.step():
                raise BrokerError("nothing will ever happen again")
        raise BrokerError(f"no end within {_EVENTS_MAX} events")

    def _check(self) -> None:
        assert self._cluster is not None
        (node,) = self._cluster.nodes
        process = node.process
        if self._errors.found:
            record = self._errors.found[0]
            cause = record.exc_info[1] if record.exc_info else None
            if cause is not None:
                # The place of the mistake tells findings apart.
                raise cause
            raise BrokerError(record.getMessage())
        if process is None:
            raise BrokerError("the broker ended")
        if process.internal_errors:
            raise process.internal_errors[0]
        if process.exceptions:
            context = process.exceptions.pop()
            error = context.get("exception")
            if isinstance(error, BaseException):
                raise error
            raise BrokerError(str(context))


async def _send(address: str, port: int, pieces: list[bytes], *, waits: bool) -> None:
    try:
        reader, writer = await asyncio.open_connection(address, port)
    except OSError:
        return
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            if waits:
                # A part of a reply, or its absence: the next request may depend on this one.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_REPLY_SECONDS):
                        if not await reader.read(1 << 16):
                            return
        if not waits:
            await asyncio.sleep(_REPLY_SECONDS / 10)
    except OSError:
        return
    finally:
        writer.close()


async def _converse(address: str, port: int, pieces: list[bytes], received: bytearray) -> None:
    reader, writer = await asyncio.open_connection(address, port)

    async def read() -> None:
        # Besides writing: a reset takes what was not read yet.
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                received.extend(data)

    reading = asyncio.create_task(read())
    try:
        with suppress(OSError):
            for piece in pieces:
                writer.write(piece)
                # So that it arrives by itself.
                await asyncio.sleep(_PIECE_SECONDS)
        await asyncio.wait([reading], timeout=_REPLY_SECONDS)
    finally:
        reading.cancel()
        writer.close()


async def _create_topics(kafka: Kafka) -> None:
    topics = [
        CreatableTopic(
            name=name,
            num_partitions=2,
            replication_factor=1,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
        )
        for name, configs in _TOPICS.items()
    ]
    await kafka.refresh()
    await kafka.ask_any(CreateTopicsRequest(topics=topics, timeout_ms=10_000))
    kafka.close()
