"""The components of a broker's log, and their levels, which can change while it runs.

A component is a name that operators know for some of the packages below `moldau`.
"""

import logging
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Final

from msgspec import Struct


class LogLevel(StrEnum):
    """The least severe level that a broker logs."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class ComponentLevels(tuple[tuple[str, LogLevel], ...]):
    """Levels of single components, as a setting."""

    __slots__ = ()

    def __str__(self) -> str:
        return ",".join(f"{name}={level}" for name, level in self)


class Component(Struct, frozen=True):
    about: str
    loggers: tuple[str, ...]
    """Each with those below it, except what another component names more exactly."""


COMPONENTS: Final[Mapping[str, Component]] = {
    "server": Component("start, stop, registration, the process", ("moldau",)),
    "metadata": Component("topics, brokers, reassignments", ("moldau.metadata", "moldau.control")),
    "raft": Component("elections and replication", ("moldau.raft", "moldau.replica")),
    "log": Component(
        "files of partitions, retention, compaction, disk space",
        ("moldau.log", "moldau.data", "moldau.server.storage"),
    ),
    "peers": Component("connections between brokers", ("moldau.net.peers",)),
    "net": Component("connections of clients", ("moldau.net",)),
    "kafka": Component("the Kafka protocol", ("moldau.edge.kafka",)),
    "http": Component("the HTTP API", ("moldau.edge.http", "uvicorn")),
    "grpc": Component("the gRPC API", ("moldau.edge.grpc", "grpc")),
    "groups": Component("consumer groups", ("moldau.groups", "moldau.coordination")),
    "transactions": Component(
        "transactions",
        (
            "moldau.transactions",
            "moldau.coordination.markers",
            "moldau.data.transactional_produce",
        ),
    ),
    "queues": Component("work queues, dead letters", ("moldau.queues", "moldau.leases")),
    "security": Component(
        "logins, certificates, tokens, joins",
        (
            "moldau.security",
            "moldau.api",
            "moldau.net.tls",
            "moldau.edge.kafka.client_login",
            "moldau.edge.kafka.sasl_gate",
            "moldau.edge.grpc.tls_credentials",
            "moldau.server.admin_token",
            "moldau.server.certificates",
            "moldau.server.jwks",
            "moldau.control.join_service",
        ),
    ),
}
DEFAULT: Final = "default"
"""Stands for all components without a level of their own, and for libraries."""
NAMES: Final = (DEFAULT, *COMPONENTS)

_component_of_logger: Final = {
    logger: name for name, component in COMPONENTS.items() for logger in component.loggers
}


@lru_cache(maxsize=1024)
def component_of(logger: str) -> str:
    """Of the logger of this name."""
    while logger:
        if logger in _component_of_logger:
            return _component_of_logger[logger]
        logger = logger.rpartition(".")[0]
    return DEFAULT


class ShownLevel(Struct, frozen=True, kw_only=True):
    """One line of the list of levels."""

    component: str
    level: LogLevel
    """The one in effect."""
    configured: LogLevel
    """What it is after a restart, or after a reset."""
    about: str


class LogLevels:
    """Levels of one process. `apply` is called with each component and its level, at once and
    when it changes."""

    def __init__(
        self,
        default: LogLevel = LogLevel.INFO,
        own: Mapping[str, LogLevel] | None = None,
        apply: Callable[[str, LogLevel], None] = lambda component, level: None,
    ) -> None:
        self._configured = {DEFAULT: default, **(own or {})}
        self._set = dict(self._configured)
        self._apply = apply
        self._apply_all()

    def shown(self) -> list[ShownLevel]:
        return [
            ShownLevel(
                component=name,
                level=_of(self._set, name),
                configured=_of(self._configured, name),
                about=COMPONENTS[name].about if name in COMPONENTS else "all without their own",
            )
            for name in NAMES
        ]

    def set(self, levels: Mapping[str, LogLevel | None]) -> None:
        """None: as configured. Names must be of NAMES."""
        for name, level in levels.items():
            if level is not None:
                self._set[name] = level
            elif name in self._configured:
                self._set[name] = self._configured[name]
            else:
                self._set.pop(name, None)
        self._apply_all()

    def _apply_all(self) -> None:
        for name in NAMES:
            self._apply(name, _of(self._set, name))


def _of(levels: Mapping[str, LogLevel], name: str) -> LogLevel:
    return levels.get(name, levels[DEFAULT])


def set_loggers(component: str, level: LogLevel) -> None:
    """Sets the level of the loggers of this process."""
    names = COMPONENTS[component].loggers if component in COMPONENTS else ("",)
    for name in names:
        logging.getLogger(name).setLevel(level.upper())


def parse_level(text: str) -> LogLevel | None:
    """Of our names, or of Kafka's; None if it is neither."""
    name = text.strip().lower()
    known = {"warn": "warning", "fatal": "error", "critical": "error", "trace": "debug"}
    try:
        return LogLevel(known.get(name, name))
    except ValueError:
        return None
