"""What a client may do with one topic or group, by Kafka's names of operations."""

from moldau.api.session import Session
from moldau.security.acl import ON_GROUP, ON_TOPIC, ResourceType


def may_with_topic(session: Session, name: str) -> list[str]:
    return [each.name for each in session.operations(ResourceType.TOPIC, name, ON_TOPIC)]


def may_with_group(session: Session, name: str) -> list[str]:
    return [each.name for each in session.operations(ResourceType.GROUP, name, ON_GROUP)]
