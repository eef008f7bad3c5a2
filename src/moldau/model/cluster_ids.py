"""The format of cluster ids: the configured name and a random number.

The number makes it unique: a second cluster that is bootstrapped with the same configuration has
another id, and neither accepts the other's brokers.
"""

import uuid
from typing import Final

_BEFORE_NUMBER: Final = "."


_NUMBER_DIGITS: Final = 16


def new_cluster_id(name: str | None, chance: uuid.UUID) -> str:
    """The id of a new cluster; `chance` is random."""
    return str(chance) if name is None else f"{name}{_BEFORE_NUMBER}{chance.hex[:_NUMBER_DIGITS]}"


def another_cluster_id(cluster_id: str, chance: uuid.UUID) -> str:
    """Of a cluster with the same name, and another random number."""
    name, separator, _ = cluster_id.rpartition(_BEFORE_NUMBER)
    return new_cluster_id(name if separator else None, chance)


def is_named(cluster_id: str, name: str | None) -> bool:
    """Whether a cluster has that name or id; true if none is given."""
    return name in (None, cluster_id, cluster_id.rpartition(_BEFORE_NUMBER)[0])
