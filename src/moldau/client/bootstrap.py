"""Owns where a client of an application finds its first broker."""

import os
from collections.abc import Sequence

from moldau.client.addresses import split_brokers
from moldau.client.errors import ClientError, InvalidArgumentError

BROKERS_VARIABLE = "MOLDAU_BROKERS"
BROKERS_DEFAULT = "localhost:9092"

Brokers = str | Sequence[str]


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
