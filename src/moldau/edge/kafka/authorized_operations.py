"""The authorized operations in responses: all of them, as there are no ACLs.

Kafka's tools show these sets. Each is a bit field over the numbers of the operations.
"""

from enum import IntEnum
from typing import Final

from moldau.wire.fields import INT32_MIN

NOT_REQUESTED: Final = INT32_MIN


class Operation(IntEnum):
    """Numbers as in the Kafka protocol."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def _bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


def if_requested(is_requested: bool, operations: int) -> int:
    return operations if is_requested else NOT_REQUESTED


ON_CLUSTER: Final = _bits(
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)
ON_TOPIC: Final = _bits(
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
ON_GROUP: Final = _bits(Operation.READ, Operation.DELETE, Operation.DESCRIBE)
