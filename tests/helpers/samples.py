"""Owns what samples of use cases are made of: their shape, names, and a queue."""

from collections.abc import Callable
from typing import Any

from handler_calls import topic
from msgspec import Struct, field

from moldau.api.session import Session
from moldau.metadata.queue_groups import QueueGroup, QueueSettings
from moldau.model.errors import ErrorCode
from moldau.model.ids import PartitionIndex, ProducerEpoch, ProducerId, TopicPartition
from moldau.security.acl import CLUSTER_NAME, ResourceType

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
CLUSTER, TRANSACTION = ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID
NAMES = {TOPIC: "orders", GROUP: "billing", CLUSTER: CLUSTER_NAME, TRANSACTION: "payments"}
ORDERS = topic("orders", (1, 2))
PARTITION = TopicPartition("orders", PartitionIndex(0))
PRODUCER = ProducerId(7), ProducerEpoch(0)
NO_RIGHT_ON_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class Sample(Struct, frozen=True, kw_only=True):
    """One way to call a use case."""

    call: Callable[[Session], Any]
    kinds: tuple[ResourceType, ...] | None = None
    """The rights that this call needs, of those in the rule; None: all."""
    without: dict[ResourceType, Any] = field(default_factory=dict)
    """What it returns without the right on this kind, if it does not raise."""
    refused_as: dict[ResourceType, ResourceType] = field(default_factory=dict)
    """Whose error it raises without the right on this kind, if not the kind's own."""
    reads_first: bool = False
    """A list, which is filtered after the service has made it."""
    topics: tuple[str, ...] = ()
    """That exist, besides `orders`."""
    answers: dict[str, Any] = field(default_factory=dict)
    """What services return."""
    effects: dict[str, Callable[..., Any]] = field(default_factory=dict)
    """What services do."""


QUEUE = QueueGroup(
    name="billing", topics=("orders",), settings=QueueSettings(dead_letter_topic="dead")
)


def one(call: Callable[[Session], Any], **more: Any) -> list[Sample]:
    return [Sample(call=call, **more)]
