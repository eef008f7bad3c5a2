"""Who leads a partition, as one broker tells it: from its own groups, and from what it heard."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from handler_calls import brokers, image, topic

from moldau.control.cluster_service import ClusterService
from moldau.control.leader_announcements import LeaderAnnouncements, LedPartition
from moldau.data.disk_space import DiskGuard
from moldau.metadata.leaders import NO_LEADER, Leader
from moldau.model.ids import BrokerId, Epoch
from moldau.testing.replicas import ManualClock

TOPIC = topic("t", (1, 2, 3))
ME, OTHER, THIRD, REMOVED = (BrokerId(number) for number in (1, 2, 3, 9))


def cluster(heard: Leader | None, own: tuple[int, int, bool] | None) -> ClusterService:
    """`own`: leader, epoch and readiness of the replica here, if there is one."""
    announcements = LeaderAnnouncements(
        me=ME, session=1, caller=cast("Any", None), peers=lambda: ()
    )
    if heard is not None:
        led = LedPartition(TOPIC.topic_id, 0, heard.epoch, (1, 2))
        announcements._note(heard.broker, [led])
    hosted = None
    if own is not None:
        core = SimpleNamespace(leader=own[0], epoch=own[1])
        replica = SimpleNamespace(
            topic_id=TOPIC.topic_id, is_ready=own[2], group=SimpleNamespace(core=core)
        )
        hosted = SimpleNamespace(replica=replica)
    nothing = cast("Any", None)
    return ClusterService(
        me=ME,
        cluster_id="c",
        clock=ManualClock(),
        metadata=cast("Any", SimpleNamespace(image=image(brokers(1, 2, 3), TOPIC))),
        metadata_members=nothing,
        partitions=cast("Any", SimpleNamespace(get=lambda name, index: hosted)),
        driver=nothing,
        transport=nothing,
        announcements=announcements,
        disk=DiskGuard(),
    )


def led(broker: BrokerId, epoch: int) -> Leader:
    return Leader(broker, Epoch(epoch))


@pytest.mark.parametrize(
    ("heard", "own", "expected"),
    [
        pytest.param(None, None, NO_LEADER, id="nothing is known"),
        pytest.param(led(OTHER, 4), None, led(OTHER, 4), id="heard, and not here"),
        pytest.param(None, (2, 4, False), led(OTHER, 4), id="followed, and not heard"),
        pytest.param(led(OTHER, 4), (3, 5, False), led(THIRD, 5), id="the own group knows more"),
        pytest.param(led(OTHER, 6), (3, 5, False), led(OTHER, 6), id="the own group lags"),
        pytest.param(led(OTHER, 4), (-1, 5, False), led(OTHER, 4), id="an election is on"),
        pytest.param(None, (1, 4, True), led(ME, 4), id="led here"),
        pytest.param(None, (1, 4, False), NO_LEADER, id="led here, and not ready"),
        pytest.param(led(ME, 4), (-1, 4, False), NO_LEADER, id="was led here"),
        pytest.param(led(ME, 4), None, NO_LEADER, id="was led here, and moved away"),
        pytest.param(led(REMOVED, 4), None, NO_LEADER, id="led by one that was removed"),
    ],
)
def test_the_leader_is_the_latest_that_can_lead(
    heard: Leader | None, own: tuple[int, int, bool] | None, expected: Leader
) -> None:
    known = cluster(heard, own)
    assert known.leader_of(TOPIC, 0) == expected
    ((leader, in_sync),) = known.leaders_and_in_sync(TOPIC, TOPIC.partitions)
    assert leader == expected
    assert (leader.broker in in_sync) == (expected != NO_LEADER)
