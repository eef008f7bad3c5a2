"""Connects consumers: checks the mode of the group, stores its settings, joins the group.

A group name has one mode. Queue groups are in the metadata, where Kafka consumers are checked
against them. A name that has committed offsets or Kafka members cannot become a queue group.
"""

import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from moldau.control.metadata_store import MetadataStore
from moldau.metadata.commands import DefineQueueGroup, DropQueueGroup
from moldau.metadata.image import Image
from moldau.metadata.queue_groups import QueueGroup
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.queue_limits import CLIENT_ID_BYTES_MAX, TOPICS_PER_CONSUMER_MAX
from moldau.queues.assignments import Assignments
from moldau.queues.group_rpc_client import GroupRpcClient
from moldau.queues.group_rpc_messages import (
    HeartbeatKind,
    MemberDescription,
    MemberHeartbeatRequest,
    unpack_partitions,
)
from moldau.queues.request_checks import check_group, check_number, invalid
from moldau.queues.types import (
    Assignment,
    ConnectOptions,
    ConnectResult,
    ErrorReason,
    Mode,
    QueueRefusedError,
    StartAt,
    unavailable,
    unknown_topic,
)

_AT_END: Final = "l"
_AT_START: Final = "e"
_UNNAMED: Final = "consumer"
_ATTEMPTS_MAX: Final = 5
_REASON_BY_CODE: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorReason.UNKNOWN_TOPIC,
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorReason.UNKNOWN_GROUP,
    ErrorCode.REQUEST_TIMED_OUT: ErrorReason.UNAVAILABLE,
    ErrorCode.NOT_CONTROLLER: ErrorReason.UNAVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorReason.UNAVAILABLE,
    ErrorCode.UNSUPPORTED_VERSION: ErrorReason.UNAVAILABLE,
    ErrorCode.NETWORK_EXCEPTION: ErrorReason.UNAVAILABLE,
}


def refused(error: RefusedError) -> QueueRefusedError:
    """The queue error for an error of the metadata."""
    return QueueRefusedError(
        _REASON_BY_CODE.get(error.code, ErrorReason.INVALID_ARGUMENT), error.message
    )


def starts_at_end(consumer: str) -> bool:
    """Whether the consumer of an ordered group connected with start LATEST; encoded in its id."""
    return consumer.rpartition("-")[2].startswith(_AT_END)


DefinitionCheck = Callable[[QueueGroup | None, QueueGroup], None]
"""Gets a queue group as it is (None: new) and as a consumer wants it; raises to refuse that."""


class ConnectHandler:
    """Connects consumers. Methods raise QueueRefusedError.

    `on_defined` is called with the queue group whenever a consumer joined one.
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

    async def connect(
        self, options: ConnectOptions, check: DefinitionCheck | None = None
    ) -> ConnectResult:
        """Raises also what `check` raises."""
        self._check(options)
        await self._check_topics(options)
        mode = await self._mode(options)
        is_new = options.group not in self._image.queue_groups
        group = await self._define(options, check) if mode is Mode.QUEUE else None
        session_ms = options.session_timeout_ms or self._session_ms
        try:
            response = await self._calls.heartbeat(
                MemberHeartbeatRequest(
                    group=options.group,
                    member=self._new_name(options),
                    kind=HeartbeatKind.JOIN,
                    client_id=_truncate(options.client_id),
                    topics=tuple(sorted(set(options.topics))),
                    is_queue=mode is Mode.QUEUE,
                    session_timeout_ms=session_ms,
                )
            )
        except QueueRefusedError as error:
            if group is not None and is_new and error.reason is ErrorReason.OTHER_MODE:
                # A Kafka consumer joined first: the name belongs to its group.
                await self._drop(options.group)
            raise
        if response.member is None:
            raise QueueRefusedError(ErrorReason.INTERNAL, "the join response has no member")
        if group is not None:
            self._on_defined(group)
        return ConnectResult(
            consumer=response.member.member,
            mode=mode,
            heartbeat_interval_ms=response.interval_ms,
            session_timeout_ms=session_ms,
            settings=None if group is None else group.settings,
            assignment=self.assignment(response.member),
        )

    async def define(self, options: ConnectOptions) -> QueueGroup:
        """The queue group as the options want it, without a member."""
        self._check(options)
        await self._check_topics(options)
        await self._mode(options)
        group = await self._define(options, None)
        self._on_defined(group)
        return group

    def assignment(self, member: MemberDescription) -> Assignment:
        """The partitions that a member polls."""
        if member.is_queue:
            return self._assignments.of_topics(member.topics)
        return self._assignments.of_partitions(unpack_partitions(member.assigned))

    # ---- checks

    def _check(self, options: ConnectOptions) -> None:
        check_group(options.group)
        if not 1 <= len(options.topics) <= TOPICS_PER_CONSUMER_MAX:
            raise invalid(
                f"{len(options.topics)} topics; a consumer must have 1 to {TOPICS_PER_CONSUMER_MAX}"
            )
        check_number(
            "session_timeout_ms",
            options.session_timeout_ms,
            self._session_ms_min,
            self._session_ms_max,
        )

    async def _check_topics(self, options: ConnectOptions) -> None:
        if any(self._image.topic(name) is None for name in options.topics):
            # It may have been created just now, and not be known here yet.
            await self.fresh()
        for name in options.topics:
            topic = self._image.topic(name)
            if topic is None:
                raise unknown_topic(name)
            if topic.internal:
                raise invalid(f"topic {name!r} is internal; consumers cannot poll it")
            if topic.configs.get("moldau.restoring"):
                # Its queues get their state before they are defined; a new one has none.
                raise unavailable(f"topic {name!r} is being restored from a backup")

    async def fresh(self) -> Image:
        """An image that includes everything committed before this call."""
        try:
            return await self._metadata.fresh()
        except RefusedError as error:
            raise unavailable(f"cannot read the cluster metadata: {error}") from None

    async def _mode(self, options: ConnectOptions) -> Mode:
        """The mode of the group, new or not. Raises OTHER_MODE."""
        name = options.group
        is_queue = name in self._image.queue_groups
        if not is_queue:
            response = await self._calls.describe(name)
            if not response.exists:
                # A queue group without members may be new, and not be known here yet.
                is_queue = name in (await self.fresh()).queue_groups
            elif any(member.is_queue for member in response.members):
                is_queue = True
            elif options.mode is Mode.QUEUE and response.is_taken:
                raise QueueRefusedError(
                    ErrorReason.OTHER_MODE,
                    f"{name!r} is already a Kafka consumer group: choose another name",
                )
            elif response.classic_members:
                raise QueueRefusedError(
                    ErrorReason.OTHER_MODE,
                    f"group {name!r} has consumers that use Kafka's classic group protocol",
                )
        if is_queue and options.mode is Mode.ORDERED:
            raise QueueRefusedError(
                ErrorReason.OTHER_MODE,
                f"group {name!r} is a queue: connect with mode QUEUE, or choose another name",
            )
        mode = options.mode or (Mode.QUEUE if is_queue else Mode.ORDERED)
        if mode is Mode.ORDERED and any(value is not None for value in _settings(options)):
            raise invalid(
                "visibility, attempts, backoff and dead letters are settings of queue groups only"
            )
        return mode

    async def _define(self, options: ConnectOptions, check: DefinitionCheck | None) -> QueueGroup:
        command = DefineQueueGroup(
            name=options.group,
            topics=options.topics,
            visibility_ms=options.visibility_ms,
            attempts_max=options.attempts_max,
            backoff_ms=options.backoff_ms,
            backoff_ms_max=options.backoff_ms_max,
            dead_letter_topic=options.dead_letter_topic,
            starts_at_end=options.start is StartAt.LATEST,
        )
        for _ in range(_ATTEMPTS_MAX):
            if await self._changed(command, check):
                break
            # Another broker was faster: decide again by what the group is now.
            await self.fresh()
        else:
            raise unavailable(f"group {options.group!r} is being changed by other consumers")
        group = self._image.queue_groups.get(options.group)
        if group is None:
            raise unavailable(f"group {options.group!r} was just deleted")
        return group

    async def _changed(self, command: DefineQueueGroup, check: DefinitionCheck | None) -> bool:
        """Whether the group is as the command says; False if it is another one than was checked.

        Raises also what `check` raises.
        """
        known = self._image.queue_groups.get(command.name)
        try:
            desired = self._metadata.preview(command).queue_groups[command.name]
        except RefusedError as error:
            raise refused(error) from None
        if desired == known:
            return True
        if check is not None:
            check(known, desired)
            command = replace(command, expected=known)
        try:
            await self._metadata.submit(command)
        except RefusedError as error:
            if error.code is ErrorCode.INVALID_UPDATE_VERSION:
                return False
            raise refused(error) from None
        return True

    async def _drop(self, name: str) -> None:
        with suppress(RefusedError):
            await self._metadata.submit(DropQueueGroup(name=name))

    def _new_name(self, options: ConnectOptions) -> str:
        """A unique consumer id; it tells partition leaders where the consumer starts."""
        start = _AT_END if options.start is StartAt.LATEST else _AT_START
        return f"{_truncate(options.client_id) or _UNNAMED}-{start}{self._new_uuid().hex}"


def _settings(options: ConnectOptions) -> tuple[int | str | None, ...]:
    return (
        options.visibility_ms,
        options.attempts_max,
        options.backoff_ms,
        options.backoff_ms_max,
        options.dead_letter_topic,
    )


def _truncate(client_id: str) -> str:
    return client_id.encode(errors="replace")[:CLIENT_ID_BYTES_MAX].decode(errors="ignore")
