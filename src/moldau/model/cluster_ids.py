"""Owns what a cluster's id looks like: the name that it was given, and a random number.

The number makes it a cluster's own: a second one that is founded with the same configuration has
another id, and neither takes the other's brokers for its own.
"""

from typing import Final

_BEFORE_NUMBER: Final = "."


def cluster_id_of(name: str, number: str) -> str:
    return f"{name}{_BEFORE_NUMBER}{number}"


def is_named(cluster_id: str, name: str | None) -> bool:
    """Whether a cluster has that name, or id; any will do if none is given."""
    return name in (None, cluster_id, cluster_id.rpartition(_BEFORE_NUMBER)[0])
