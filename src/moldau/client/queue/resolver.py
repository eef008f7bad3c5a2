"""Keeps the client's view of the cluster up to date: every few seconds, and when it proves stale.

Leaders are not part of the metadata version, so the last response wins, unless its version is
older. Brokers are queried in turn: the view of an isolated broker must not be used forever.
"""

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from typing import Final

import grpc
from grpc import aio

from moldau.client.addresses import split_brokers
from moldau.client.cluster_client import ClusterClient
from moldau.client.errors import (
    ClientError,
    InvalidArgumentError,
    TimedOutError,
    UnavailableError,
)
from moldau.client.queue.channels import TOPOLOGY, Channels
from moldau.client.queue.cluster_view import ClusterView, view_of_grpc, view_of_http
from moldau.client.queue.rpc_failures import (
    REFUSED,
    RpcFailure,
    failure_of,
    refused_failure,
    retries_exhausted_error,
    timed_out_failure,
    unreachable_failure,
)
from moldau.client.retry import CONNECT_RETRY_SECONDS_MAX, CONNECT_SECONDS_MAX, Backoff
from moldau.client.security import PLAIN_TEXT, Security
from moldau.model.errors import ErrorCode
from moldau.model.topology import Endpoint
from moldau.proto.v1 import queue_pb2 as pb

log = logging.getLogger(__name__)

GRPC_PORT: Final = 8000
REFRESH_SECONDS: Final = 10.0
QUERY_SECONDS_MAX: Final = 3.0
_REFRESH_SECONDS_MIN: Final = 0.05
"""Minimum interval between refreshes."""
_REFUSED_SECONDS_FIRST: Final = 5.0
_REFUSED_SECONDS_MAX: Final = 60.0
_HTTP: Final = ("http://", "https://")


class Resolver:
    """Keeps `view` up to date. `seeds`: gRPC addresses, or HTTP ones with http://."""

    def __init__(
        self,
        seeds: Sequence[str],
        channels: Channels,
        *,
        refresh_seconds: float = REFRESH_SECONDS,
        security: Security = PLAIN_TEXT,
    ) -> None:
        self.view = ClusterView()
        self.seeds = grpc_seeds(seeds)
        self._http = [seed for seed in seeds if seed.startswith(_HTTP)]
        self._channels = channels
        self._security = security
        self._refresh_seconds = refresh_seconds
        self._turn = 0
        self._queried_at = 0.0
        self._refreshing: asyncio.Task[None] | None = None
        self._refresher: asyncio.Task[None] | None = None
        self.has_response = False
        """Whether a broker responded to the last refresh."""
        self.failures: dict[str, RpcFailure] = {}
        """The failures of the last refresh, by address."""
        self._has_http_response = False
        self._refusals = 0
        """Refreshes in a row for which all brokers refused our login."""
        self._refresh_at = 0.0
        """Not before: each refused login makes the next ones of this user wait."""

    @property
    def candidates(self) -> list[str]:
        """Addresses for requests to any broker: those alive, else all known ones."""
        return self.view.alive_addresses or self.known_addresses

    @property
    def trouble(self) -> str:
        """Why no broker responded to the last refresh; empty: one did."""
        if self.has_response:
            return ""
        return ", ".join(dict.fromkeys(map(str, self.failures.values())))

    @property
    def known_addresses(self) -> list[str]:
        return list(dict.fromkeys([*self.view.all_addresses, *self.seeds]))

    async def start(self, seconds_max: float) -> None:
        """Get the first view. Raises UnreachableError by the connect deadline, or TimedOutError
        after `seconds_max` if a broker is connected, but does not respond."""
        started_at = time.monotonic()
        backoff = Backoff(seconds_max, pause_seconds_max=0.2)
        failures: dict[str, RpcFailure] = {}
        while True:
            await self.refresh()
            for address, failure in self.failures.items():
                # Of a name with two addresses, gRPC says now one reason, now the other.
                if failure.text != REFUSED or address not in failures:
                    failures[address] = failure
            if self.view.version >= 0:
                break
            seconds = time.monotonic() - started_at
            if backoff.is_over or seconds >= self._connect_seconds_max():
                raise retries_exhausted_error(failures, "reach the cluster", round(seconds, 1))
            waits = (failure.retry_seconds for failure in self.failures.values())
            await backoff.sleep_async(min(waits, default=0.0))
        self.keep_refreshing()

    def _connect_seconds_max(self) -> float:
        if not any(failure.is_retriable for failure in self.failures.values()):
            # Another server, or a rejection: waiting does not help.
            return CONNECT_RETRY_SECONDS_MAX
        is_connected = any(self._channels.is_connected(address) for address in self.seeds)
        if is_connected or self._has_http_response:
            return math.inf
        late = grpc.StatusCode.DEADLINE_EXCEEDED
        if any(failure.status is late for failure in self.failures.values()):
            return CONNECT_SECONDS_MAX
        return CONNECT_RETRY_SECONDS_MAX

    def keep_refreshing(self) -> None:
        """Refresh the view in the background from now on."""
        self._refresher = asyncio.create_task(self._keep(), name="queue-topology")

    async def close(self) -> None:
        for task in (self._refresher, self._refreshing):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])

    def refresh_soon(self) -> None:
        """The view may be stale: refresh it in the background."""
        if time.monotonic() < self._refresh_at:
            return
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh(), name="queue-topology-refresh")

    async def refresh(self) -> None:
        """Refresh the view now; concurrent calls share one query. Keeps the old one on failure."""
        self.refresh_soon()
        if self._refreshing is not None:
            await asyncio.shield(self._refreshing)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_seconds)
            await self.refresh()

    async def _refresh(self) -> None:
        await asyncio.sleep(max(0.0, self._queried_at + _REFRESH_SECONDS_MIN - time.monotonic()))
        self._queried_at = time.monotonic()
        failures: dict[str, RpcFailure] = {}
        outdated: ClusterView | None = None
        for address in self._in_turn():
            found = await self._query_grpc(address, failures)
            if found is not None and not self._is_older(found):
                break
            outdated, found = found or outdated, None
        else:
            found = await self._query_http(failures) or outdated
        self.failures = failures
        self.has_response = found is not None
        if found is not None:
            self._adopt(found)
        is_refused = found is None and any(each.is_refused_login for each in failures.values())
        self._refusals = min(self._refusals + 1, 8) if is_refused else 0
        if is_refused:
            pause = _REFUSED_SECONDS_FIRST * 2 ** (self._refusals - 1)
            self._refresh_at = time.monotonic() + min(pause, _REFUSED_SECONDS_MAX)

    def _in_turn(self) -> list[str]:
        addresses = list(dict.fromkeys([*self.view.alive_addresses, *self.known_addresses]))
        if not addresses:
            return []
        self._turn = (self._turn + 1) % len(addresses)
        return addresses[self._turn :] + addresses[: self._turn]

    async def _query_grpc(
        self, address: str, failures: dict[str, RpcFailure]
    ) -> ClusterView | None:
        try:
            response = await self._channels.call(
                address, TOPOLOGY, pb.TopologyRequest(), seconds_max=QUERY_SECONDS_MAX
            )
        except aio.AioRpcError as error:
            failures[address] = failure_of(error, address)
            return None
        return view_of_grpc(response, address)

    async def _query_http(self, failures: dict[str, RpcFailure]) -> ClusterView | None:
        if not self._http:
            return None
        try:
            client = ClusterClient(
                self._http, call_seconds_max=QUERY_SECONDS_MAX, security=self._security
            )
            return view_of_http(await asyncio.to_thread(client.topology))
        except ClientError as error:
            log.debug("cannot get the topology over HTTP: %s", error)
            is_late = isinstance(error, TimedOutError)
            self._has_http_response = isinstance(error, UnavailableError)
            is_refused = getattr(error, "code", 0) == ErrorCode.SASL_AUTHENTICATION_FAILED
            for address in self._http:
                failed = timed_out_failure if is_late else unreachable_failure
                failed = refused_failure if is_refused else failed
                failures[address] = failed(address, f"no topology over HTTP: {error}")
            return None

    def _is_older(self, view: ClusterView) -> bool:
        return view.cluster_id == self.view.cluster_id and view.version < self.view.version

    def _adopt(self, view: ClusterView) -> None:
        if self.view.cluster_id and view.cluster_id != self.view.cluster_id:
            log.warning(
                "the brokers now belong to cluster %s, not %s; is an address reused?",
                view.cluster_id,
                self.view.cluster_id,
            )
        self.view = view
        self._channels.keep_only({*self.known_addresses})


def grpc_seeds(seeds: Sequence[str]) -> list[str]:
    """The gRPC addresses of `seeds`, as HOST:PORT. Raises InvalidArgumentError."""
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
        found += [str(Endpoint(host, port)) for host, port in pairs]
    return list(dict.fromkeys(found))
