"""All groups are listed, or it is said that some may be missing."""

from collections.abc import Callable
from typing import Any, cast

import pytest
from fakes import Fake

from moldau.client.errors import RejectedError, UnreachableError
from moldau.client.wire.group_offsets import GroupOffsets
from moldau.model.errors import ErrorCode
from moldau.wire.messages.list_groups import ListedGroup, ListGroupsResponse
from moldau.wire.messages.metadata import (
    MetadataBroker,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

BROKERS = [MetadataBroker(node_id=number, host=f"b{number}", port=1) for number in (1, 2)]


class Brokers(Fake):
    """Two brokers with one group each; in place of the client and its connections.

    `views` are what the metadata says of the leaders and epochs, one after the other; None: the
    topic does not exist.
    """

    def __init__(self, *views: list[tuple[int, int]] | None) -> None:
        self.views = list(views)
        self.tries = 0
        self.down: list[str] = []
        """Until the next try."""

    def metadata(self, topic: str) -> MetadataResponse:
        view = self.views.pop(0) if len(self.views) > 1 else self.views[0]
        partitions = [
            MetadataResponsePartition(
                partition_index=index,
                leader_id=leader,
                leader_epoch=epoch,
                replica_nodes=[],
                isr_nodes=[],
            )
            for index, (leader, epoch) in enumerate(view or [])
        ]
        code = ErrorCode.NONE if view is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        found = MetadataResponseTopic(error_code=code, name=topic, partitions=partitions)
        return MetadataResponse(brokers=BROKERS, topics=[found])

    def connection(self, host: str, port: int) -> "Brokers":
        if host in self.down:
            self.down.remove(host)
            raise UnreachableError(f"cannot reach {host}")
        self.host = host
        return self

    def request(self, *args: object) -> ListGroupsResponse:
        group = ListedGroup(group_id=f"of {self.host}", protocol_type="consumer")
        return ListGroupsResponse(groups=[group])

    def with_retries(self, attempt: Callable[[], Any], **options: Any) -> Any:
        for self.tries in range(1, 4):
            try:
                return attempt()
            except RejectedError as error:
                if error.code not in options["codes"]:
                    raise
                last = error
        raise last


def groups(brokers: Brokers) -> list[str]:
    admin = GroupOffsets("b1:1")
    admin._client = cast(Any, brokers)
    return admin.groups()


ALL = ["of b1", "of b2"]
STABLE = [(1, 5), (2, 7)]


def test_those_that_lead_are_asked_once_while_nothing_changes() -> None:
    # The topic is made for the first group.
    for view, found in ((STABLE, ALL), ([(2, 5), (2, 7)], ["of b2"]), (None, [])):
        brokers = Brokers(view)
        assert groups(brokers) == found
        assert brokers.tries == 1


@pytest.mark.parametrize(
    "views",
    [
        pytest.param([[(-1, 5), (2, 7)], STABLE], id="no leader at first"),
        pytest.param([STABLE, [(2, 6), (2, 7)], STABLE], id="one moved while they were listed"),
        pytest.param([STABLE, [(1, 6), (2, 7)], STABLE], id="the same leader, elected again"),
        pytest.param([[(3, 5), (2, 7)], STABLE], id="a leader that is not there"),
    ],
)
def test_they_are_listed_again_after_a_change(views: list[list[tuple[int, int]]]) -> None:
    brokers = Brokers(*views)
    assert groups(brokers) == ALL
    assert brokers.tries == 2


def test_a_coordinator_that_has_just_failed_is_replaced_within_seconds() -> None:
    brokers = Brokers(STABLE)
    brokers.down = ["b1", "b2"]
    assert groups(brokers) == ALL
    assert brokers.tries == 3


def test_a_partition_without_a_leader_is_an_error() -> None:
    with pytest.raises(RejectedError, match="cannot list all groups: __consumer_offsets-0 has no"):
        groups(Brokers([(-1, 5), (2, 7)]))
