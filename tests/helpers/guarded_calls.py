"""Owns a broker whose services only remember that they were called, and sessions on it."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, cast, get_type_hints

from handler_calls import LoopClock, brokers, image, topic
from msgspec.structs import replace

from harness.virtual_loop import run_virtually
from moldau.api.audit import AuditLog
from moldau.api.broker import Broker
from moldau.api.guard import OPEN_LISTENER, ListenerAccess
from moldau.api.session import Session, Sessions
from moldau.model.errors import RefusedError
from moldau.model.ids import BrokerId, TimestampMs
from moldau.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from moldau.security.principal import Principal, user

ALICE = user("alice")
HOST = "192.0.2.7"
FACTS = {
    "broker_id",
    "auto_create_topics",
    "data_dir",
    "clock",
    "metadata",
    "disk_free_bytes",
    "disk_total_bytes",
}
SERVICES: dict[str, type[Any]] = {
    name: kind for name, kind in get_type_hints(Broker).items() if name not in FACTS
}
"""Of a broker, by their names in it."""


def allow(
    operation: Operation,
    kind: ResourceType,
    name: str,
    *,
    principal: Principal = ALICE,
    pattern: PatternType = PatternType.LITERAL,
    permission: Permission = Permission.ALLOW,
) -> Acl:
    return Acl(kind, name, pattern, str(principal), "*", operation, permission)


class Recorder:
    """A service that does nothing but remember its calls; it has the methods of `kind` only."""

    def __init__(self, kind: type[Any]) -> None:
        self._kind = kind
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.answers: dict[str, Any] = {}
        self.effects: dict[str, Callable[..., Any]] = {}

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._kind, name)
        if not callable(real):
            return self.answers.get(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            inspect.signature(real).bind(self, *args, **kwargs)
            self.calls.append((name, args, kwargs))
            if name in self.effects:
                return self.effects[name](*args, **kwargs)
            return self.answers.get(name, [])

        async def call_later(*args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs)

        return call_later if inspect.iscoroutinefunction(real) else call

    def __iter__(self) -> Iterator[Any]:
        return iter(self.answers.get("__iter__", ()))


class GuardedWorld:
    """A broker of recorders with one topic, and sessions on it."""

    def __init__(self) -> None:
        self.services = {name: Recorder(kind) for name, kind in SERVICES.items()}
        self.audited: list[str] = []
        self._metadata = SimpleNamespace(image=image(brokers(1, 2), topic("orders", (1, 2))))
        self.broker = Broker(
            broker_id=BrokerId(1),
            auto_create_topics=True,
            data_dir="data",
            clock=cast(Any, _StandingClock()),
            metadata=cast(Any, self._metadata),
            disk_free_bytes=lambda: 1,
            disk_total_bytes=lambda: 2,
            **cast(Any, self.services),
        )
        self.sessions = Sessions(
            self.broker,
            super_users=frozenset({user("root")}),
            audit=AuditLog(self.broker.clock, self.audited.append),
        )

    def seed(self, **fields: Any) -> None:
        """Changes fields of the image."""
        self._metadata.image = replace(self._metadata.image, **fields)

    def grant(self, acls: Iterable[Acl]) -> None:
        """These and no others."""
        self._metadata.image = replace(self._metadata.image, acls=frozenset(acls))

    def session(
        self, principal: Principal = ALICE, listener: ListenerAccess = OPEN_LISTENER
    ) -> Session:
        return self.sessions.session(principal, HOST, listener=listener)

    @property
    def touched(self) -> list[str]:
        """The calls that reached a service."""
        return [
            f"{name}.{method}"
            for name, service in self.services.items()
            for method, _, _ in service.calls
        ]


class _StandingClock(LoopClock):
    def monotonic(self) -> float:
        return 0.0

    def wall_ms(self) -> TimestampMs:
        return TimestampMs(1_000)


def outcome(call: Callable[[Session], Any], session: Session) -> Any:
    """What the call returns, or the RefusedError that it raises."""

    async def run() -> Any:
        try:
            found = call(session)
            return await found if inspect.isawaitable(found) else found
        except RefusedError as error:
            return error

    return run_virtually(run())
