"""Owns the view of the cluster: asks for it, again every few seconds, and when it proves wrong.

Who leads a partition is no part of the metadata's version, so the last answer wins unless it is of
an older version. Brokers are asked in turn: one that is cut off must not be believed for ever.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final

from grpc import aio

from moldau.client.addresses import split_brokers
from moldau.client.cluster_client import ClusterClient
from moldau.client.errors import ClientError, InvalidArgumentError
from moldau.client.queue.channels import TOPOLOGY, Channels
from moldau.client.queue.cluster_view import ClusterView, view_of_grpc, view_of_http
from moldau.client.queue.rpc_failures import (
    RpcFailure,
    failure_of,
    retries_exhausted_error,
    unreachable_failure,
)
from moldau.proto.v1 import queue_pb2 as pb

log = logging.getLogger(__name__)

GRPC_PORT: Final = 8000
REFRESH_SECONDS: Final = 10.0
ASK_SECONDS_MAX: Final = 3.0
_CALM_SECONDS: Final = 0.05
"""Refreshes that are asked for follow each other no faster."""
_HTTP: Final = "http://"


class Resolver:
    """Keeps `view`. `seeds` are gRPC addresses, or HTTP ones that begin with http://."""

    def __init__(
        self, seeds: Sequence[str], channels: Channels, *, refresh_seconds: float = REFRESH_SECONDS
    ) -> None:
        self.view = ClusterView()
        self.seeds = grpc_seeds(seeds)
        self._http = [seed for seed in seeds if seed.startswith(_HTTP)]
        self._channels = channels
        self._refresh_seconds = refresh_seconds
        self._turn = 0
        self._asked = 0.0
        self._refreshing: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self.is_answered = False
        """Whether somebody answered the last refresh."""
        self.failures: dict[str, RpcFailure] = {}
        """Of the last refresh."""

    @property
    def candidates(self) -> list[str]:
        """Whom to ask what anybody can answer: who is alive, else whoever there may be."""
        return self.view.alive_addresses or self.known_addresses

    @property
    def known_addresses(self) -> list[str]:
        return list(dict.fromkeys([*self.view.all_addresses, *self.seeds]))

    async def start(self, seconds_max: float) -> None:
        """Have a first view. Raises ClientError if nobody tells it in time."""
        deadline = time.monotonic() + seconds_max
        while True:
            await self.refresh()
            if self.view.version >= 0:
                break
            if time.monotonic() > deadline:
                raise retries_exhausted_error(self.failures, "reach the cluster", seconds_max)
            await asyncio.sleep(_CALM_SECONDS * 4)
        self.keep()

    def keep(self) -> None:
        """Keep the view from now on, whether there is one yet or not."""
        self._keeping = asyncio.create_task(self._keep(), name="queue-topology")

    async def close(self) -> None:
        for task in (self._keeping, self._refreshing):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])

    def suspect(self) -> None:
        """The view has proved wrong: have a new one soon, and don't wait for it."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh(), name="queue-topology-refresh")

    async def refresh(self) -> None:
        """Ask for the view now, once for all who want it. Keeps the old one if nobody answers."""
        self.suspect()
        if self._refreshing is not None:
            await asyncio.shield(self._refreshing)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_seconds)
            await self.refresh()

    async def _refresh(self) -> None:
        await asyncio.sleep(max(0.0, self._asked + _CALM_SECONDS - time.monotonic()))
        self._asked = time.monotonic()
        failures: dict[str, RpcFailure] = {}
        outdated: ClusterView | None = None
        for address in self._in_turn():
            found = await self._ask_grpc(address, failures)
            if found is not None and not self._is_older(found):
                break
            outdated, found = found or outdated, None
        else:
            found = await self._ask_http(failures) or outdated
        self.failures = failures
        self.is_answered = found is not None
        if found is not None:
            self._take(found)

    def _in_turn(self) -> list[str]:
        addresses = list(dict.fromkeys([*self.view.alive_addresses, *self.known_addresses]))
        if not addresses:
            return []
        self._turn = (self._turn + 1) % len(addresses)
        return addresses[self._turn :] + addresses[: self._turn]

    async def _ask_grpc(self, address: str, failures: dict[str, RpcFailure]) -> ClusterView | None:
        try:
            answer = await self._channels.call(
                address, TOPOLOGY, pb.TopologyRequest(), seconds_max=ASK_SECONDS_MAX
            )
        except aio.AioRpcError as error:
            failures[address] = failure_of(error, address)
            return None
        return view_of_grpc(answer, address)

    async def _ask_http(self, failures: dict[str, RpcFailure]) -> ClusterView | None:
        if not self._http:
            return None
        try:
            client = ClusterClient(self._http, call_seconds_max=ASK_SECONDS_MAX)
            return view_of_http(await asyncio.to_thread(client.topology))
        except ClientError as error:
            log.debug("no topology over HTTP: %s", error)
            for address in self._http:
                failures[address] = unreachable_failure(address, "no topology over HTTP")
            return None

    def _is_older(self, view: ClusterView) -> bool:
        return view.cluster_id == self.view.cluster_id and view.version < self.view.version

    def _take(self, view: ClusterView) -> None:
        if self.view.cluster_id and view.cluster_id != self.view.cluster_id:
            log.warning("another cluster answers now: %s", view.cluster_id)
        self.view = view
        self._channels.keep_only({*self.known_addresses})


def grpc_seeds(seeds: Sequence[str]) -> list[str]:
    """The gRPC addresses among them, as HOST:PORT. Raises InvalidArgumentError."""
    found: list[str] = []
    for seed in seeds:
        if seed.startswith(_HTTP):
            continue
        try:
            pairs = split_brokers(seed, port_default=GRPC_PORT)
        except ClientError as error:
            raise InvalidArgumentError(
                str(error), hint="write HOST:PORT, or set MOLDAU_GRPC"
            ) from error
        found += [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in pairs]
    return list(dict.fromkeys(found))
