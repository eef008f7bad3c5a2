"""Owns what a client of an application begins with: its settings, and its first broker."""

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from moldau.client.addresses import split_brokers
from moldau.client.errors import ClientError, InvalidArgumentError

BROKERS_VARIABLE = "MOLDAU_BROKERS"
BROKERS_DEFAULT = "localhost:9092"
"""Without the variable. It is read here alone, once for each config, so that a program which names
no broker runs wherever `moldau` does; whoever names one is not touched by it."""

Brokers = str | Sequence[str]
C = TypeVar("C")


def config_from(kind: type[C], given: C | Brokers | None, settings: dict[str, Any]) -> C:
    """The config itself, or one made of brokers and settings. Raises InvalidArgumentError."""
    if isinstance(given, kind):
        if settings:
            raise InvalidArgumentError(
                f"settings beside a {kind.__name__}", hint=f"put them into the {kind.__name__}"
            )
        return given
    if given is not None:
        settings = {**settings, "bootstrap_servers": given}
    try:
        return kind(**settings)
    except TypeError as error:
        names = ", ".join(inspect.signature(kind).parameters)
        text = str(error).rpartition(") ")[2]
        raise InvalidArgumentError(text, hint=f"there are: {names}") from error


def bootstrap_list(brokers: Brokers | None) -> str:
    """HOST:PORT[,…] as librdkafka wants it: what was given, else MOLDAU_BROKERS, else localhost."""
    if brokers is None:
        brokers = os.environ.get(BROKERS_VARIABLE) or BROKERS_DEFAULT
    try:
        joined = brokers if isinstance(brokers, str) else ",".join(brokers)
        split_brokers(joined)
    except TypeError as error:
        raise InvalidArgumentError(
            f"{brokers!r} is no list of broker addresses", hint='write ["HOST:PORT"]'
        ) from error
    except ClientError as error:
        raise InvalidArgumentError(
            str(error), hint=f'write bootstrap_servers=["HOST:PORT"], or set {BROKERS_VARIABLE}'
        ) from error
    return joined


class ConfigWithBrokers(Protocol):
    """A config, frozen once it is made."""

    @property
    def bootstrap_servers(self) -> Brokers | None: ...


def fill_in_brokers(config: ConfigWithBrokers) -> None:
    """While a config is made: check its addresses, or put those in that hold without any."""
    joined = bootstrap_list(config.bootstrap_servers)
    if config.bootstrap_servers is None:
        object.__setattr__(config, "bootstrap_servers", joined)


def check_minimum(config: object, least: Mapping[str, float]) -> None:
    """Refuse settings that are no numbers, or below the least. None passes."""
    for name, lowest in least.items():
        value = getattr(config, name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidArgumentError(f"{name}={value!r} is no number")
        if value < lowest:
            raise InvalidArgumentError(f"{name}={value} is too small", hint=f"at least {lowest}")


def check_text(config: object, *names: str) -> None:
    """Refuse settings that are neither text nor None."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not isinstance(value, str):
            raise InvalidArgumentError(f"{name}={value!r} is no text")
