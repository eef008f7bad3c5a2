"""Owns the gRPC listener of a broker, from the import of its library to its end.

gRPC costs a tenth of a second to import. A thread does it while the broker opens its logs and finds
its cluster; this module must therefore not import it.
"""

import asyncio
from asyncio import AbstractEventLoop
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from moldau.edge.grpc.engine import Engine
    from moldau.service.broker import Broker

MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcLimits:
    """What protects the broker from those who connect."""

    connections_max: int = 1024
    calls_max: int = 8192
    """At once; most of them wait."""
    calls_per_connection_max: int = 1024
    request_bytes_max: int = 6 * MIB
    """As batches they go to another broker, which takes 8 MiB at once."""
    answer_bytes_max: int = 64 * MIB
    handshake_ms_max: int = 20_000
    idle_ms_max: int = 600_000
    """A connection without a call is closed after this; clients open it again by themselves."""
    silence_ms_max: int = 30_000
    """A client that is silent for so long is asked whether it is there."""
    ping_ms_min: int = 5_000
    """Who asks more often whether we are there is cut off."""


DEFAULT_LIMITS: Final = GrpcLimits()


def _load() -> "type[Engine]":
    from moldau.edge.grpc.engine import Engine

    return Engine


class GrpcListener:
    """One gRPC address. Load it early, start it when the broker can answer, stop it once."""

    def __init__(self, loop: AbstractEventLoop, limits: GrpcLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._engine: Engine | None = None
        with_thread = ThreadPoolExecutor(1, thread_name_prefix="grpc-import")
        self._loading: asyncio.Future[type[Engine]] = loop.run_in_executor(with_thread, _load)
        with_thread.shutdown(wait=False)

    async def load(self, broker: "Broker") -> None:
        """Wait for the import, and put everything together."""
        kind = await self._loading
        self._engine = kind(broker, self._limits)

    def bind(self, address: str) -> None:
        """Begin to listen, but answer nobody yet. Raises OSError."""
        if self._engine is None:
            raise RuntimeError("load first")
        self._engine.bind(address)

    async def start(self) -> None:
        """Answer."""
        if self._engine is None:
            raise RuntimeError("load first")
        await self._engine.start()

    async def stop(self, grace_seconds: float) -> None:
        """Refuse who waits, let calls finish for so long, then cut them."""
        self._loading.cancel()
        if self._engine is not None:
            await self._engine.stop(grace_seconds)
