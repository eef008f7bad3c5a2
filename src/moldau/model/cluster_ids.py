"""The format of cluster ids: the configured name and a random number.

The number makes it unique: a second cluster that is bootstrapped with the same configuration has
another id, and neither accepts the other's brokers.
"""

from typing import Final

_BEFORE_NUMBER: Final = "."


def cluster_id_of(name: str, number: str) -> str:
    return f"{name}{_BEFORE_NUMBER}{number}"


def is_named(cluster_id: str, name: str | None) -> bool:
    """Whether a cluster has that name or id; true if none is given."""
    return name in (None, cluster_id, cluster_id.rpartition(_BEFORE_NUMBER)[0])
