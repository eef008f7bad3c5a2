"""What a client may do with one topic or group, by Kafka's names of operations."""

from typing import Final

from moldau.api.session import Session
from moldau.security.acl import Operation, ResourceType

ON_TOPIC: Final = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
ON_GROUP: Final = (Operation.READ, Operation.DELETE, Operation.DESCRIBE)


def may_with_topic(session: Session, name: str) -> list[str]:
    return [each.name for each in session.operations(ResourceType.TOPIC, name, ON_TOPIC)]


def may_with_group(session: Session, name: str) -> list[str]:
    return [each.name for each in session.operations(ResourceType.GROUP, name, ON_GROUP)]
