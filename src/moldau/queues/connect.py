"""Owns how somebody becomes a consumer: the kind of the group, its settings, its membership.

A name belongs to one kind of group. That of a queue group stands in the metadata, and Kafka's
consumers find it there. A name that has offsets or other members is no queue group's any more.
"""

import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from moldau.control.metadata_store import MetadataStore
from moldau.metadata.commands import DefineQueueGroup, DropQueueGroup
from moldau.metadata.image import Image
from moldau.metadata.queue_groups import QueueGroup
from moldau.model.errors import ErrorCode, RefusedError
from moldau.queues.assignments import Assignments
from moldau.queues.group_rpc_client import GroupRpcClient
from moldau.queues.group_rpc_messages import (
    HeartbeatKind,
    MemberDescription,
    MemberHeartbeatRequest,
    unpacked,
)
from moldau.queues.request_checks import (
    CLIENT_ID_BYTES_MAX,
    TOPICS_PER_CONSUMER_MAX,
    check_group,
    check_number,
    invalid,
)
from moldau.queues.types import (
    Assignment,
    ConnectOptions,
    ConnectResult,
    ErrorReason,
    Mode,
    QueueRefusedError,
    StartAt,
)

_AT_END: Final = "l"
_AT_START: Final = "e"
_UNNAMED: Final = "consumer"
_WHY: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorReason.UNKNOWN_TOPIC,
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorReason.UNKNOWN_GROUP,
    ErrorCode.REQUEST_TIMED_OUT: ErrorReason.UNAVAILABLE,
    ErrorCode.NOT_CONTROLLER: ErrorReason.UNAVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorReason.UNAVAILABLE,
    ErrorCode.UNSUPPORTED_VERSION: ErrorReason.UNAVAILABLE,
    ErrorCode.NETWORK_EXCEPTION: ErrorReason.UNAVAILABLE,
}


def refused(error: RefusedError) -> QueueRefusedError:
    """What the metadata refuse, in the terms of queues."""
    return QueueRefusedError(_WHY.get(error.code, ErrorReason.INVALID_ARGUMENT), error.message)


def starts_at_end(consumer: str) -> bool:
    """What a consumer of an ordered group asked for, when it was given its name."""
    return consumer.rpartition("-")[2].startswith(_AT_END)


class ConnectHandler:
    """Makes consumers. Everything raises QueueRefusedError.

    `on_defined` hears of a queue group whenever somebody has joined it.
    """

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        calls: GroupRpcClient,
        assignments: Assignments,
        session_timeout_ms: int,
        session_timeout_ms_min: int,
        session_timeout_ms_max: int,
        on_defined: Callable[[QueueGroup], None],
        new_uuid: Callable[[], uuid.UUID],
    ) -> None:
        self._metadata = metadata
        self._calls = calls
        self._assignments = assignments
        self._session_ms = session_timeout_ms
        self._session_ms_min = session_timeout_ms_min
        self._session_ms_max = session_timeout_ms_max
        self._on_defined = on_defined
        self._new_uuid = new_uuid

    @property
    def _image(self) -> Image:
        return self._metadata.image

    async def connect(self, asked: ConnectOptions) -> ConnectResult:
        self._check(asked)
        await self._check_topics(asked)
        mode = await self._mode(asked)
        is_new = asked.group not in self._image.queue_groups
        group = await self._define(asked) if mode is Mode.QUEUE else None
        session_ms = asked.session_timeout_ms or self._session_ms
        try:
            told = await self._calls.beat(
                MemberHeartbeatRequest(
                    group=asked.group,
                    member=self._new_name(asked),
                    kind=HeartbeatKind.JOIN,
                    client_id=_cut(asked.client_id),
                    topics=tuple(sorted(set(asked.topics))),
                    is_queue=mode is Mode.QUEUE,
                    session_timeout_ms=session_ms,
                )
            )
        except QueueRefusedError as error:
            if group is not None and is_new and error.why is ErrorReason.OTHER_MODE:
                # A consumer of Kafka was faster: the name is its group's.
                await self._drop(asked.group)
            raise
        if told.told is None:
            raise QueueRefusedError(ErrorReason.INTERNAL, "who joined is not told about itself")
        if group is not None:
            self._on_defined(group)
        return ConnectResult(
            consumer=told.told.member,
            mode=mode,
            heartbeat_interval_ms=told.interval_ms,
            session_timeout_ms=session_ms,
            settings=None if group is None else group.settings,
            assignment=self.assignment(told.told),
        )

    def assignment(self, member: MemberDescription) -> Assignment:
        """What a member is to poll."""
        if member.is_queue:
            return self._assignments.of_topics(member.topics)
        return self._assignments.of_partitions(unpacked(member.assigned))

    # ---- checks

    def _check(self, asked: ConnectOptions) -> None:
        check_group(asked.group)
        if not 1 <= len(asked.topics) <= TOPICS_PER_CONSUMER_MAX:
            raise invalid(
                f"a consumer has 1 to {TOPICS_PER_CONSUMER_MAX} topics, not {len(asked.topics)}"
            )
        check_number(
            "session_timeout_ms",
            asked.session_timeout_ms,
            self._session_ms_min,
            self._session_ms_max,
        )

    async def _check_topics(self, asked: ConnectOptions) -> None:
        if any(self._image.topic(name) is None for name in asked.topics):
            # It may be new, and not known here yet.
            await self.fresh()
        for name in asked.topics:
            topic = self._image.topic(name)
            if topic is None:
                raise QueueRefusedError(
                    ErrorReason.UNKNOWN_TOPIC, f"topic {name[:250]!r} does not exist"
                )
            if topic.internal:
                raise invalid(f"topic {name!r} belongs to the broker itself")

    async def fresh(self) -> Image:
        """An image that has everything that was committed when it was asked for."""
        try:
            return await self._metadata.fresh()
        except RefusedError as error:
            raise QueueRefusedError(
                ErrorReason.UNAVAILABLE, f"the cluster's metadata cannot be asked now: {error}"
            ) from None

    async def _mode(self, asked: ConnectOptions) -> Mode:
        """Of the group, be it new or not; its name is not of the other kind."""
        name = asked.group
        is_queue = name in self._image.queue_groups
        if not is_queue:
            told = await self._calls.describe(name)
            if not told.exists:
                # A queue group that nobody is in may be known elsewhere already.
                is_queue = name in (await self.fresh()).queue_groups
            elif any(member.is_queue for member in told.members):
                is_queue = True
            elif asked.mode is Mode.QUEUE and told.is_taken:
                raise QueueRefusedError(
                    ErrorReason.OTHER_MODE,
                    f"group {name!r} takes partitions, and has members or offsets as such: "
                    "choose another name for a queue",
                )
            elif told.classic_members:
                raise QueueRefusedError(
                    ErrorReason.OTHER_MODE,
                    f"group {name!r} has consumers that speak Kafka's older group protocol",
                )
        if is_queue and asked.mode is Mode.ORDERED:
            raise QueueRefusedError(
                ErrorReason.OTHER_MODE,
                f"group {name!r} is a queue: connect in that mode, or by another name",
            )
        mode = asked.mode or (Mode.QUEUE if is_queue else Mode.ORDERED)
        if mode is Mode.ORDERED and any(value is not None for value in _settings(asked)):
            raise invalid("an ordered group has no leases, attempts or dead letters to be set")
        return mode

    async def _define(self, asked: ConnectOptions) -> QueueGroup:
        command = DefineQueueGroup(
            name=asked.group,
            topics=asked.topics,
            visibility_ms=asked.visibility_ms,
            attempts_max=asked.attempts_max,
            backoff_ms=asked.backoff_ms,
            backoff_ms_max=asked.backoff_ms_max,
            dead_letter_topic=asked.dead_letter_topic,
            starts_at_end=asked.start is StartAt.LATEST,
        )
        try:
            wished = self._metadata.preview(command).queue_groups[asked.group]
            if wished != self._image.queue_groups.get(asked.group):
                await self._metadata.submit(command)
        except RefusedError as error:
            raise refused(error) from None
        group = self._image.queue_groups.get(asked.group)
        if group is None:
            raise QueueRefusedError(
                ErrorReason.UNAVAILABLE, f"group {asked.group!r} was just deleted"
            )
        return group

    async def _drop(self, name: str) -> None:
        with suppress(RefusedError):
            await self._metadata.submit(DropQueueGroup(name=name))

    def _new_name(self, asked: ConnectOptions) -> str:
        """Unique; it also says where its owner begins, for whoever leads what it will poll."""
        start = _AT_END if asked.start is StartAt.LATEST else _AT_START
        return f"{_cut(asked.client_id) or _UNNAMED}-{start}{self._new_uuid().hex}"


def _settings(asked: ConnectOptions) -> tuple[int | str | None, ...]:
    return (
        asked.visibility_ms,
        asked.attempts_max,
        asked.backoff_ms,
        asked.backoff_ms_max,
        asked.dead_letter_topic,
    )


def _cut(client_id: str) -> str:
    return client_id.encode(errors="replace")[:CLIENT_ID_BYTES_MAX].decode(errors="ignore")
