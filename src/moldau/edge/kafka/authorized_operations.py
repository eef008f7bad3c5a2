"""The authorized operations in responses: what the client may do, as Kafka's tools show it.

Each set is a bit field over the numbers of the operations.
"""

from collections.abc import Iterable
from typing import Final

from moldau.api.session import Session
from moldau.security.acl import CLUSTER_NAME, Operation, ResourceType
from moldau.wire.fields import INT32_MIN

NOT_REQUESTED: Final = INT32_MIN

OF_CLUSTER: Final = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)
OF_TOPIC: Final = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
OF_GROUP: Final = (Operation.READ, Operation.DELETE, Operation.DESCRIBE)


def on_cluster(session: Session) -> int:
    return bits(session.operations(ResourceType.CLUSTER, CLUSTER_NAME, OF_CLUSTER))


def on_topic(session: Session, name: str) -> int:
    return bits(session.operations(ResourceType.TOPIC, name, OF_TOPIC))


def on_group(session: Session, name: str) -> int:
    return bits(session.operations(ResourceType.GROUP, name, OF_GROUP))


def bits(operations: Iterable[Operation]) -> int:
    return sum(1 << operation for operation in operations)
