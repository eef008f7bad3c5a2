"""Builds and validates the configuration of a client, and resolves its bootstrap servers."""

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from moldau.client.addresses import split_brokers, with_localhost
from moldau.client.errors import ADDRESS_HINT, ClientError, InvalidArgumentError

BROKERS_VARIABLE = "MOLDAU_BROKERS"
BROKERS_DEFAULT = "localhost:9092"
"""If MOLDAU_BROKERS is not set. The variable is read only here, once per config, and only if the
program names no broker."""

Brokers = str | Sequence[str]
C = TypeVar("C")


def config_from(kind: type[C], given: C | Brokers | None, settings: Mapping[str, Any]) -> C:
    """`given` if it is a config, else a config built from it. Raises InvalidArgumentError."""
    if isinstance(given, kind):
        if settings:
            raise InvalidArgumentError(
                f"both a {kind.__name__} and settings given",
                hint=f"put the settings into the {kind.__name__}",
            )
        return given
    if given is not None:
        settings = {**settings, "bootstrap_servers": given}
    try:
        return kind(**settings)
    except TypeError as error:
        names = ", ".join(inspect.signature(kind).parameters)
        text = str(error).rpartition(") ")[2]
        raise InvalidArgumentError(text, hint=f"valid settings: {names}") from error


def bootstrap_list(brokers: Brokers | None) -> str:
    """HOST:PORT[,…] for librdkafka: `brokers`, else MOLDAU_BROKERS, else localhost:9092."""
    if brokers is None:
        brokers = os.environ.get(BROKERS_VARIABLE) or BROKERS_DEFAULT
    try:
        joined = with_localhost(brokers if isinstance(brokers, str) else ",".join(brokers))
        split_brokers(joined)
    except TypeError as error:
        raise InvalidArgumentError(
            f"bootstrap_servers must be a list of addresses, not {brokers!r}",
            hint='write ["HOST:PORT"]',
        ) from error
    except ClientError as error:
        raise InvalidArgumentError(str(error), hint=ADDRESS_HINT) from error
    return joined


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """What the configs of Kafka clients share."""

    bootstrap_servers: Brokers | None = None
    """HOST:PORT[,HOST:PORT…] or a list; None: MOLDAU_BROKERS, else localhost:9092."""
    security: Mapping[str, str] = field(default_factory=dict, repr=False)
    """TLS and SASL, by the names of Kafka's clients: security.protocol, sasl.mechanism,
    sasl.username, sasl.password, sasl.jaas.config, ssl.ca.location, …"""

    def __post_init__(self) -> None:
        joined = bootstrap_list(self.bootstrap_servers)
        if self.bootstrap_servers is None:
            object.__setattr__(self, "bootstrap_servers", joined)

    @property
    def brokers(self) -> str:
        """The bootstrap servers as one string."""
        return bootstrap_list(self.bootstrap_servers)


def check_choice(config: object, name: str, choices: tuple[str, ...]) -> None:
    """Reject a setting that is none of the choices."""
    if getattr(config, name) not in choices:
        raise InvalidArgumentError(
            f"unknown {name} {getattr(config, name)!r}", hint=f"one of {', '.join(choices)}"
        )


def check_minimum(config: object, least: Mapping[str, float]) -> None:
    """Reject settings that are not numbers or below their minimum. None is accepted."""
    for name, lowest in least.items():
        value = getattr(config, name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidArgumentError(f"{name} must be a number, not {value!r}")
        if value < lowest:
            raise InvalidArgumentError(
                f"{name} must be at least {lowest}, not {value}",
                hint=f"write {name}={lowest} or more",
            )


def check_text(config: object, *names: str) -> None:
    """Reject settings that are neither str nor None."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not isinstance(value, str):
            raise InvalidArgumentError(f"{name} must be a string, not {value!r}")
