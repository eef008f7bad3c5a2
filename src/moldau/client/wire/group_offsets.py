"""Committed offsets of groups: all groups of a cluster, all offsets of one, and commits for it."""

from collections.abc import Iterable
from typing import NamedTuple

from moldau.client.wire.client import WireAdmin, check_code
from moldau.client.wire.connection import KafkaConnection
from moldau.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from moldau.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
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


class CommittedOffset(NamedTuple):
    topic: str
    partition: int
    offset: int
    metadata: str = ""


class GroupOffsets(WireAdmin):
    """Groups of both protocols, and those that only store offsets."""

    def groups(self) -> list[str]:
        """The names of all groups. Raises ClientError if a broker does not respond."""
        found: set[str] = set()
        for broker in self._client.metadata().brokers:

            def attempt(host: str = broker.host, port: int = broker.port) -> ListGroupsResponse:
                connection = self._client.connection(host, port)
                response = connection.request(ListGroupsRequest(), ListGroupsResponse)
                check_code(response.error_code, "list groups")
                return response

            found.update(group.group_id for group in self._retry(attempt).groups)
        return sorted(found)

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
        return self._client.connection(found.host, found.port)
