"""Rules for queue groups: names, topics and settings."""

from typing import Final

from msgspec import UNSET
from msgspec.structs import replace

from moldau.metadata.checks import check_topic_name, existing_topic, invalid_topic
from moldau.metadata.commands import DefineQueueGroup, DropQueueGroup
from moldau.metadata.config_types import shown
from moldau.metadata.image import INTERNAL_TOPICS, Image
from moldau.metadata.queue_groups import DEAD_LETTER_SUFFIX, QueueGroup, QueueSettings
from moldau.metadata.records import (
    FeatureLevelSet,
    MetadataRecord,
    QueueGroupDropped,
    QueueGroupSet,
)
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.queue_limits import ATTEMPTS_MAX, BACKOFF_MS_MAX, VISIBILITY_MS_MAX

QUEUE_GROUPS_LEVEL: Final = 2
"""The feature level that supports queue groups."""
NAME_BYTES_MAX: Final = 255
TOPICS_PER_GROUP_MAX: Final = 100
QUEUE_GROUPS_MAX: Final = 10_000
"""Every broker stores all of them."""
_CHANGEABLE: Final = (
    "visibility_ms",
    "attempts_max",
    "backoff_ms",
    "backoff_ms_max",
    "dead_letter_topic",
)
"""Settings that every command may change; None in the command keeps them."""


def define_queue_group(command: DefineQueueGroup, image: Image) -> list[MetadataRecord]:
    known = image.queue_groups.get(command.name)
    if command.expected is not UNSET and command.expected != known:
        raise RefusedError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Queue group {shown(command.name)} was changed at the same time: try again",
        )
    if known is None:
        _check_new(command.name, image)
    topics = sorted({*(() if known is None else known.topics), *command.topics})
    if len(topics) > TOPICS_PER_GROUP_MAX:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"A queue group can have at most {TOPICS_PER_GROUP_MAX} topics, and "
            f"{shown(command.name)} would have {len(topics)}",
        )
    ids = []
    for name in topics:
        topic = existing_topic(image, name)
        if topic.internal:
            raise invalid_topic(f"Topic '{name}' is internal and cannot be used as a queue")
        ids.append(topic.topic_id)
    settings = _settings(command, None if known is None else known.settings)
    if settings.dead_letter_topic in topics:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"Topic '{settings.dead_letter_topic}' cannot be both a topic of queue group "
            f"{shown(command.name)} and its dead-letter topic",
        )
    group = QueueGroup(name=command.name, topics=tuple(topics), settings=settings)
    if group == known:
        return []
    records: list[MetadataRecord] = [QueueGroupSet(group=group, topic_ids=tuple(ids))]
    if image.feature_level < QUEUE_GROUPS_LEVEL:
        records.insert(0, FeatureLevelSet(level=QUEUE_GROUPS_LEVEL))
    return records


def drop_queue_group(command: DropQueueGroup, image: Image) -> list[MetadataRecord]:
    if command.name not in image.queue_groups:
        raise RefusedError(
            ErrorCode.GROUP_ID_NOT_FOUND, f"Queue group {shown(command.name)} does not exist"
        )
    return [QueueGroupDropped(name=command.name)]


def _check_new(name: str, image: Image) -> None:
    if not name or len(name.encode()) > NAME_BYTES_MAX:
        raise RefusedError(
            ErrorCode.INVALID_GROUP_ID,
            f"The name of a queue group must have 1 to {NAME_BYTES_MAX} bytes, and {shown(name)} "
            f"has {len(name.encode())}",
        )
    if len(image.queue_groups) >= QUEUE_GROUPS_MAX:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"The cluster has {QUEUE_GROUPS_MAX} queue groups, which is the limit",
        )
    for broker in image.brokers.values():
        # It cannot read the record, and would stop at it permanently.
        if broker.feature_level_max < QUEUE_GROUPS_LEVEL:
            raise RefusedError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Broker {broker.id} does not support queue groups: "
                "restart it with a newer version first",
            )


def _settings(command: DefineQueueGroup, known: QueueSettings | None) -> QueueSettings:
    """Raises RefusedError for values out of bounds."""
    if known is None:
        known = QueueSettings(
            dead_letter_topic=command.name + DEAD_LETTER_SUFFIX, starts_at_end=command.starts_at_end
        )
    given = {name: value for name in _CHANGEABLE if (value := getattr(command, name)) is not None}
    settings = replace(known, **given)
    if command.backoff_ms_max is None:
        settings = replace(settings, backoff_ms_max=max(known.backoff_ms_max, settings.backoff_ms))
    for name, value, least, most in (
        ("visibility_ms", settings.visibility_ms, 1, VISIBILITY_MS_MAX),
        ("attempts_max", settings.attempts_max, 1, ATTEMPTS_MAX),
        ("backoff_ms", settings.backoff_ms, 0, BACKOFF_MS_MAX),
        ("backoff_ms_max", settings.backoff_ms_max, settings.backoff_ms, BACKOFF_MS_MAX),
    ):
        if not least <= value <= most:
            raise RefusedError(
                ErrorCode.INVALID_CONFIG, f"{name} is {value}, but must be {least} to {most}"
            )
    dead = settings.dead_letter_topic
    check_topic_name(dead)
    if dead in INTERNAL_TOPICS:
        raise invalid_topic(f"Topic name '{dead}' is reserved for internal use")
    return settings
