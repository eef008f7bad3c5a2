"""All Kafka listeners of a broker: each with its own dispatcher, TLS and rules of access."""

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

from moldau.api.connections import ConnectionShown
from moldau.api.metric_sources import OneListener
from moldau.api.session import ListenerAccess, Sessions
from moldau.edge.kafka.client_connections import shown
from moldau.edge.kafka.dispatcher import Dispatcher
from moldau.edge.kafka.served_apis import APIS
from moldau.edge.kafka.turn_order import LargeRequests
from moldau.metadata.broker_config_table import CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS_MAX
from moldau.metadata.image import Image
from moldau.metadata.topic_configs import broker_layers, runtime_value
from moldau.model.clock import Clock
from moldau.model.histogram import Histogram, total
from moldau.model.ids import BrokerId
from moldau.net.budget import ByteBudget
from moldau.net.connection import Connection, FrameHandler
from moldau.net.limits import ConnectionLimits
from moldau.net.listener import Listener, ListenerLimits
from moldau.net.sockets import Sockets
from moldau.server.certificates import Certificates
from moldau.server.config.listeners import listeners_for
from moldau.server.config.schema import KafkaConfig, ServerConfig
from moldau.server.config.security_schema import ListenerConfig, ListenerProtocol
from moldau.server.derived_config import runtime_defaults
from moldau.server.descriptors import connections_allowed, raise_limit
from moldau.server.ports import ReservedPort

_DRAIN_POLL_SECONDS: Final = 0.01
_TLS_PER_SECOND_MAX: Final = 100
"""New connections of one address, unless configured: a handshake costs far more than an accept."""


class Gate(NamedTuple):
    """What stands between a listener and its dispatcher, to authenticate clients."""

    handler: FrameHandler
    on_accepted: Callable[[Connection], None] | None = None


GateBuilder = Callable[[ListenerConfig, Dispatcher, ConnectionLimits], Gate]


def no_gate(listener: ListenerConfig, dispatcher: Dispatcher, limits: ConnectionLimits) -> Gate:
    return Gate(dispatcher)


class KafkaServer:
    """Starts and stops the listeners together, and sums up their numbers."""

    def __init__(
        self,
        config: ServerConfig,
        sessions: Sessions,
        certificates: Certificates,
        *,
        loop: AbstractEventLoop,
        clock: Clock,
        sockets: Sockets,
        gate: GateBuilder = no_gate,
    ) -> None:
        """Raises ConfigError if certificates cannot be used."""
        kafka = config.kafka
        self._clock = clock
        self._budget = ByteBudget(kafka.inflight_bytes_max)
        limits = _connection_limits(kafka)
        large = LargeRequests()
        self.connections_max = kafka.connections_max
        self._static = runtime_defaults(config)
        self._followed: object = None
        self._dispatchers: list[Dispatcher] = []
        self._listeners: list[Listener] = []
        for listener in listeners_for(config, ListenerProtocol.KAFKA):
            access = ListenerAccess(name=listener.name, read_only=listener.read_only)
            dispatcher = Dispatcher(sessions, APIS, access, sessions.quotas, large)
            handler, on_accepted = gate(listener, dispatcher, limits)
            self._dispatchers.append(dispatcher)
            self._listeners.append(
                Listener(
                    loop=loop,
                    handler=handler,
                    limits=_listener_limits(kafka, listener),
                    connection_limits=limits,
                    budget=self._budget,
                    clock=clock,
                    on_accepted=on_accepted,
                    sockets=sockets,
                    tls=certificates.of(listener),
                    name=listener.name,
                )
            )

    # ---- life

    def bind(self, ports: Iterable[ReservedPort]) -> None:
        """One port per listener, in the order of the configuration. Raises OSError."""
        for listener, port in zip(self._listeners, ports, strict=True):
            port.bind(listener)

    def start(self, ports: Iterable[ReservedPort]) -> None:
        """Raises ConfigError if another process took a port."""
        for listener, port in zip(self._listeners, ports, strict=True):
            port.listen(listener.start)

    def stop_accepting(self) -> None:
        for listener in self._listeners:
            listener.stop_accepting()

    async def drain(self, seconds_max: float, end_waits: Callable[[], None]) -> None:
        """Let connections finish their pending requests; `end_waits` ends those that wait."""
        for listener in self._listeners:
            listener.drain()
        deadline = self._clock.monotonic() + seconds_max
        while self.connection_count and self._clock.monotonic() < deadline:
            end_waits()
            await asyncio.sleep(_DRAIN_POLL_SECONDS)

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()

    async def stop_handlers(self) -> None:
        for dispatcher in self._dispatchers:
            await dispatcher.stop()

    def follow(self, image: Image, me: BrokerId) -> None:
        """Apply limits that were changed at run time."""
        if image.broker_configs is self._followed:
            return
        self._followed = image.broker_configs
        layers = broker_layers(image, me, self._static)
        most, per_address = (
            int(str(runtime_value(name, layers)))
            for name in (CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS_MAX)
        )
        self.connections_max = most
        for listener in self._listeners:
            listener.limit(
                connections_max=connections_allowed(most, raise_limit()),
                connections_per_address_max=per_address,
            )

    # ---- numbers

    @property
    def listeners(self) -> Sequence[Listener]:
        return self._listeners

    @property
    def connection_count(self) -> int:
        return sum(listener.connection_count for listener in self._listeners)

    @property
    def inflight_bytes(self) -> int:
        return self._budget.used

    @property
    def accepted_total(self) -> int:
        return sum(listener.accepted_total for listener in self._listeners)

    @property
    def refused_total(self) -> int:
        return sum(listener.refused_total for listener in self._listeners)

    @property
    def failed_total(self) -> int:
        """Connections closed for what their client did, since the start."""
        return sum(listener.failures.failures_total for listener in self._listeners)

    def requests_by_api(self) -> Mapping[str, int]:
        first, *others = (dispatcher.requests_by_api() for dispatcher in self._dispatchers)
        for other in others:
            for api, count in other.items():
                first[api] += count
        return first

    def seconds_by_api(self) -> Mapping[str, Histogram]:
        found = [dispatcher.seconds_by_api() for dispatcher in self._dispatchers]
        if len(found) == 1:
            return found[0]
        return {api: total(durations[api] for durations in found) for api in found[0]}

    def queue_seconds(self) -> Histogram:
        return total(listener.queue_seconds for listener in self._listeners)

    def open_connections(self, most: int, wall_ms: int) -> tuple[int, list[ConnectionShown]]:
        """See `ConnectionSource`."""
        now = self._clock.monotonic()
        found = [
            shown(connection, dispatcher.principal_of(connection), listener.name, now, wall_ms)
            for listener, dispatcher in zip(self._listeners, self._dispatchers, strict=True)
            for connection in islice(listener.connections, most)
        ]
        found.sort(key=attrgetter("opened_at_ms"))
        return self.connection_count, found[:most]

    def by_listener(self) -> list[OneListener]:
        return [
            OneListener(one.name, "kafka", one.connection_count, one.accepted_total)
            for one in self._listeners
        ]


def _connection_limits(kafka: KafkaConfig) -> ConnectionLimits:
    return ConnectionLimits(
        request_bytes_max=kafka.request_bytes_max,
        inflight_bytes_max=kafka.inflight_bytes_per_connection_max,
        inflight_requests_max=kafka.inflight_requests_per_connection_max,
    )


def _listener_limits(kafka: KafkaConfig, listener: ListenerConfig) -> ListenerLimits:
    rate: float | None = kafka.connections_per_second_per_address_max
    if rate is None:
        rate = _TLS_PER_SECOND_MAX if listener.uses_tls else None
    elif rate < 0:
        rate = None
    idle_ms = kafka.idle_ms_max
    return ListenerLimits(
        connections_max=connections_allowed(kafka.connections_max, raise_limit()),
        connections_per_address_max=kafka.connections_per_address_max,
        idle_seconds_max=float("inf") if idle_ms < 0 else idle_ms / 1000,
        per_second_per_address_max=rate,
        handshake_seconds_max=kafka.handshake_ms_max / 1000,
    )
