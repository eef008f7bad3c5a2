"""Committed offsets of groups: all groups of a cluster, all offsets of one, and commits for it."""

from collections.abc import Iterable
from typing import NamedTuple

from moldau.client.errors import RejectedError, UnreachableError
from moldau.client.wire.client import WireAdmin, check_code
from moldau.client.wire.connection import KafkaConnection
from moldau.model.errors import ErrorCode
from moldau.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from moldau.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from moldau.wire.messages.metadata import MetadataBroker
from moldau.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from moldau.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)

_GROUP = 0
_COORDINATOR_VERSION = 4
_FETCH_VERSION = 9
_COMMIT_VERSION = 9
"""The last that identify topics by name."""


_TOPIC = "__consumer_offsets"


class CommittedOffset(NamedTuple):
    topic: str
    partition: int
    offset: int
    metadata: str = ""


class GroupOffsets(WireAdmin):
    """Groups of both protocols, and those that only store offsets."""

    def groups(self) -> list[str]:
        """The names of all groups. Raises ClientError if a coordinator does not respond.

        A broker lists the groups that it coordinates: those of a partition without a leader, or one
        that moves meanwhile, would be missing without an error. One that is away leads none.
        """

        def attempt() -> list[str]:
            brokers, leaders = self._coordinators()
            found: set[str] = set()
            for broker in brokers:
                connection = self._connection(broker.host, broker.port)
                response = connection.request(ListGroupsRequest(), ListGroupsResponse)
                check_code(response.error_code, "list groups")
                found.update(group.group_id for group in response.groups)
            if self._coordinators()[1] != leaders:
                raise _not_all(f"leaders of {_TOPIC} change")
            return sorted(found)

        return self._retry(attempt)

    def _coordinators(self) -> tuple[list[MetadataBroker], dict[int, tuple[int, int]]]:
        """Those that lead; and for each partition of the groups its leader and epoch."""
        response = self._client.metadata(_TOPIC)
        (topic,) = response.topics
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            # It is made for the first group.
            return [], {}
        check_code(topic.error_code, f"list all groups: {_TOPIC}")
        known = {broker.node_id: broker for broker in response.brokers}
        for each in topic.partitions:
            if each.leader_id not in known:
                raise _not_all(f"{_TOPIC}-{each.partition_index} has no leader")
        leaders = {
            each.partition_index: (each.leader_id, each.leader_epoch) for each in topic.partitions
        }
        return [known[number] for number in {leader for leader, _ in leaders.values()}], leaders

    def offsets(self, group: str) -> list[CommittedOffset]:
        """What the group has committed, without transactions that are still open."""
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])

        def attempt() -> list[CommittedOffset]:
            connection = self._coordinator(group)
            (found,) = connection.request(request, OffsetFetchResponse, _FETCH_VERSION).groups
            check_code(found.error_code, f"fetch the offsets of group {group}")
            offsets = []
            for topic in found.topics:
                for each in topic.partitions:
                    check_code(each.error_code, f"fetch the offsets of group {group}")
                    if each.committed_offset >= 0:
                        offsets.append(
                            CommittedOffset(
                                topic.name,
                                each.partition_index,
                                each.committed_offset,
                                each.metadata or "",
                            )
                        )
            return sorted(offsets)

        return self._retry(attempt)

    def commit(self, group: str, offsets: Iterable[CommittedOffset]) -> None:
        """Commit for a group without members."""
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for each in offsets:
            topics.setdefault(each.topic, []).append(
                OffsetCommitRequestPartition(
                    partition_index=each.partition,
                    committed_offset=each.offset,
                    committed_metadata=each.metadata,
                )
            )
        request = OffsetCommitRequest(
            group_id=group,
            member_id="",
            topics=[
                OffsetCommitRequestTopic(name=name, partitions=parts)
                for name, parts in topics.items()
            ],
        )

        def attempt() -> None:
            connection = self._coordinator(group)
            response = connection.request(request, OffsetCommitResponse, _COMMIT_VERSION)
            for topic in response.topics:
                for each in topic.partitions:
                    check_code(each.error_code, f"commit offsets of group {group}")

        self._retry(attempt)

    def _coordinator(self, group: str) -> KafkaConnection:
        request = FindCoordinatorRequest(coordinator_keys=[group], key_type=_GROUP)
        connection = self._client.any_broker()
        response = connection.request(request, FindCoordinatorResponse, _COORDINATOR_VERSION)
        (found,) = response.coordinators
        check_code(found.error_code, f"find the coordinator of group {group}")
        return self._connection(found.host, found.port)

    def _connection(self, host: str, port: int) -> KafkaConnection:
        """To a coordinator: if it has just failed, another broker takes over within seconds."""
        try:
            return self._client.connection(host, port)
        except UnreachableError as error:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            raise RejectedError(str(error), code, hint="find the cause: moldau doctor") from None


def _not_all(why: str) -> RejectedError:
    return RejectedError(
        f"cannot list all groups: {why}",
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        hint="repeat the command when all brokers run: moldau doctor",
    )
