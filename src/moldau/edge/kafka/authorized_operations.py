"""The authorized operations in responses: what the client may do, as Kafka's tools show it.

Each set is a bit field over the numbers of the operations.
"""

from collections.abc import Iterable
from typing import Final

from moldau.api.session import Session
from moldau.security.acl import (
    CLUSTER_NAME,
    ON_CLUSTER,
    ON_GROUP,
    ON_TOPIC,
    Operation,
    ResourceType,
)
from moldau.wire.fields import INT32_MIN

NOT_REQUESTED: Final = INT32_MIN


def on_cluster(session: Session) -> int:
    return bits(session.operations(ResourceType.CLUSTER, CLUSTER_NAME, ON_CLUSTER))


def on_topic(session: Session, name: str) -> int:
    return bits(session.operations(ResourceType.TOPIC, name, ON_TOPIC))


def on_group(session: Session, name: str) -> int:
    return bits(session.operations(ResourceType.GROUP, name, ON_GROUP))


def bits(operations: Iterable[Operation]) -> int:
    return sum(1 << operation for operation in operations)
