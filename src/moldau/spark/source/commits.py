"""Responsible for the progress of a query as offsets of a group: `moldau group lag` shows its lag.

The group has no members: nothing is assigned by it, and Spark's checkpoint alone says where a query
goes on. So a commit that fails for a while harms nothing, and is made up for by the next.
"""

import logging
from collections.abc import Mapping
from typing import Final

from moldau.client.errors import (
    InvalidArgumentError,
    RejectedError,
    TimedOutError,
    UnreachableError,
)
from moldau.client.kafka.client import KafkaClient
from moldau.client.kafka.connection import KafkaConnection
from moldau.model.errors import ErrorCode
from moldau.model.ids import TopicPartition
from moldau.spark.source.positions import Positions
from moldau.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from moldau.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

log = logging.getLogger(__name__)

_BY_NAME: Final = 9
"""The last version of OffsetCommit that names topics by their names."""
_SINGLE_KEY: Final = 3
"""The last version of FindCoordinator that asks for one group."""
_REFUSED: Final = (
    *(ErrorCode.INVALID_GROUP_ID, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
)
"""For good: the query is told, rather than the group forgotten."""
_TAKEN: Final = (
    *(ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH),
    *(ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.FENCED_MEMBER_EPOCH),
)


class GroupCommits:
    """Commits positions for a group, if they are others than the last time."""

    def __init__(self, client: KafkaClient, group: str) -> None:
        self._client = client
        self._group = group
        self._coordinator: KafkaConnection | None = None
        self._committed: dict[TopicPartition, int] = {}

    def commit(self, positions: Positions) -> None:
        """Raises InvalidArgumentError if the group cannot be this query's."""
        changed = {
            place: offset
            for place, offset in positions.offsets.items()
            if self._committed.get(place) != offset
        }
        if not changed:
            return
        try:
            self._send(changed)
        except (RejectedError, UnreachableError, TimedOutError) as error:
            self._coordinator = None
            if isinstance(error, RejectedError) and error.code in _REFUSED:
                raise
            log.warning(
                "the progress could not be committed for group %s, and is committed with the next "
                "batch: %s",
                self._group,
                error,
            )
            return
        self._committed |= changed

    def _send(self, offsets: Mapping[TopicPartition, int]) -> None:
        by_topic: dict[str, list[OffsetCommitRequestPartition]] = {}
        for place, offset in offsets.items():
            by_topic.setdefault(place.topic, []).append(
                OffsetCommitRequestPartition(
                    partition_index=place.partition, committed_offset=offset, committed_metadata=""
                )
            )
        topics = [OffsetCommitRequestTopic(name=n, partitions=p) for n, p in by_topic.items()]
        request = OffsetCommitRequest(group_id=self._group, member_id="", topics=topics)
        coordinator = self._coordinator
        if coordinator is None or coordinator.closed:
            coordinator = self._coordinator = self._find()
        version = min(coordinator.version_for(request), _BY_NAME)
        response = coordinator.ask(request, OffsetCommitResponse, version)
        for topic in response.topics:
            for answer in topic.partitions:
                self._check(answer.error_code, f"{topic.name}-{answer.partition_index}")

    def _find(self) -> KafkaConnection:
        request = FindCoordinatorRequest(key=self._group)
        known = self._client.any_broker()
        version = min(known.version_for(request), _SINGLE_KEY)
        found = known.ask(request, FindCoordinatorResponse, version)
        self._check(found.error_code, "its coordinator")
        return self._client.connection(found.host, found.port)

    def _check(self, code: int, what: str) -> None:
        if not code or code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            # A partition that was deleted meanwhile has no lag.
            return
        if code in _TAKEN:
            raise InvalidArgumentError(
                f"the group {self._group} has members, so a query cannot commit for it: choose "
                "another groupId",
            )
        name = RejectedError("", code).name
        raise RejectedError(
            f"cannot commit {what} for group {self._group}: {name}; see option groupId", code
        )
