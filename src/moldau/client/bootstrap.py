"""Owns what a client of an application begins with: its settings, and its first broker."""

import inspect
import os
from collections.abc import Sequence
from typing import Any, TypeVar

from moldau.client.addresses import split_brokers
from moldau.client.errors import ClientError, InvalidArgumentError

BROKERS_VARIABLE = "MOLDAU_BROKERS"
BROKERS_DEFAULT = "localhost:9092"

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
    joined = brokers if isinstance(brokers, str) else ",".join(brokers)
    try:
        split_brokers(joined)
    except ClientError as error:
        raise InvalidArgumentError(
            str(error), hint=f'write bootstrap_servers=["HOST:PORT"], or set {BROKERS_VARIABLE}'
        ) from error
    return joined
