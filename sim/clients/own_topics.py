"""What an admin knows of its topics: what was acknowledged, and what nobody knows."""

from dataclasses import dataclass, field
from enum import Enum

from moldau.model.errors import ErrorCode
from moldau.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from moldau.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from sim.clients.session import Session

TOPIC_KIND = 2
BROKER_KIND = 4
_NULL_NAMES_FROM = 12


class State(Enum):
    """Of a topic."""

    THERE = "there"
    UNSURE = "unsure"
    """It was to be deleted, and nobody said whether it was."""
    GONE = "gone"


@dataclass(eq=False)
class OwnTopic:
    """One that was created, by an answer that said so."""

    name: str
    partitions: int
    replication: int
    configs: dict[str, str]
    topic_id: bytes = bytes(16)
    state: State = State.THERE
    is_count_sure: bool = True
    unsure: set[str] = field(default_factory=set)
    """Settings whose last change was not acknowledged."""
    starts: dict[int, int] = field(default_factory=dict)
    """Offsets below which records were deleted."""

    @property
    def has_id(self) -> bool:
        return any(self.topic_id)


async def find_wrong(session: Session, topic: OwnTopic, *, by_id: bool) -> str | None:
    """What a broker that has heard of everything says about a topic and must not; or None.

    Raises Lost.
    """
    by_id = by_id and topic.has_id
    asked = MetadataRequestTopic(name=topic.name)
    if by_id:
        asked = MetadataRequestTopic(name=None, topic_id=topic.topic_id)
    answer = await session.ask(
        MetadataRequest(topics=[asked], allow_auto_topic_creation=False),
        first=_NULL_NAMES_FROM if by_id else 4,
    )
    reported = answer.topics[0]
    code = ErrorCode(reported.error_code)
    is_missing = code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
    if topic.state is State.GONE:
        return None if is_missing else f"topic {topic.name} is deleted, and back: {code.name}"
    if topic.state is State.UNSURE:
        return None
    if is_missing:
        return f"topic {topic.name} is not there: {code.name}"
    if code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
        return f"topic {topic.name}: {code.name}"
    if topic.has_id and any(reported.topic_id) and reported.topic_id != topic.topic_id:
        return f"topic {topic.name} is another one"
    count = len(reported.partitions)
    if count < topic.partitions or (topic.is_count_sure and count != topic.partitions):
        return f"topic {topic.name} has {count} partitions instead of {topic.partitions}"
    return await _find_wrong_config(session, topic)


async def _find_wrong_config(session: Session, topic: OwnTopic) -> str | None:
    resource = DescribeConfigsResource(
        resource_type=TOPIC_KIND, resource_name=topic.name, configuration_keys=None
    )
    reported = (await session.ask(DescribeConfigsRequest(resources=[resource]))).results[0]
    if reported.error_code:
        return f"settings of {topic.name}: {ErrorCode(reported.error_code).name}"
    shown = {entry.name: entry for entry in reported.configs}
    for name, value in topic.configs.items():
        if name not in topic.unsure and shown[name].value != value:
            return f"{name} of {topic.name} is {shown[name].value} instead of {value}"
    for name, entry in shown.items():
        is_set = entry.config_source == 1
        if is_set and name not in topic.configs and name not in topic.unsure:
            return f"{name} of {topic.name} is {entry.value}, and was not set"
    return None
