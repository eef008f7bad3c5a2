"""What the collectors add up over fakes, and that names from clients do not make it endless."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import Fake
from login_world import StillClock
from open_sessions import broker_with
from scrape import Scrape

from moldau.api import leader_ends
from moldau.api.cluster_queries import PartitionExtent
from moldau.api.lag_history import LagHistory
from moldau.api.leader_ends import LeaderEnds
from moldau.api.local_replicas import LocalReplicas
from moldau.api.metrics_view import MetricsView
from moldau.data.traffic import TopicTraffic, Traffic
from moldau.edge.http.metrics import Collector, limits
from moldau.edge.http.metrics.cluster import cluster_families, partition_families
from moldau.edge.http.metrics.groups import group_families
from moldau.edge.http.metrics.replication import lag_families
from moldau.edge.http.metrics.work import transaction_families
from moldau.groups.results import GroupState, ListedGroup
from moldau.metadata.leaders import Leader
from moldau.model.errors import ErrorCode
from moldau.model.ids import BrokerId, Epoch, PartitionIndex, TimestampMs, TopicPartition
from moldau.model.prometheus_text import render
from moldau.transactions.totals import EndedTransactions, TransactionTotals


def hosted(topic: str, partition: int, *, watermark: int, **followers: int) -> SimpleNamespace:
    """A partition with followers that hold so much, and two of which have to be in sync."""
    log = SimpleNamespace(
        size_bytes=100,
        start_offset=1,
        end_offset=watermark,
        start=SimpleNamespace(offset=0, control_count=0),
        offset_of=lambda index: index,
        headers=lambda offset: iter(
            [SimpleNamespace(base_timestamp=StillClock().wall_ms() - 5000)]
        ),
    )
    progress = {
        int(name.removeprefix("of_")): SimpleNamespace(match=match)
        for name, match in followers.items()
    }
    return SimpleNamespace(
        traffic=Traffic(),
        config=SimpleNamespace(insync_replicas_min=2 if followers else 1),
        replica=SimpleNamespace(
            partition=TopicPartition(topic, PartitionIndex(partition)),
            is_leader=True,
            high_watermark=watermark,
            log=log,
            group=SimpleNamespace(core=SimpleNamespace(progress=progress)),
            # As many as there are records, for a number that differs.
            follower_seconds=lambda: dict.fromkeys(progress, float(watermark)),
            members=SimpleNamespace(everyone=[1, *progress]),
            epoch=3,
            in_sync=lambda _: [1, *(peer for peer, one in progress.items() if one.match > 5)],
        ),
    )


class FakePartitions(list[Any], Fake):
    offline: dict[object, object] = {}

    def __init__(self, found):
        super().__init__(found)
        self.traffic = TopicTraffic()

    def get(self, topic, partition):
        for one in self:
            if one.replica.partition == (topic, partition):
                return one
        return None


class NoAnswers:
    async def extents(self, wanted):
        return {}


def fake_broker(there: FakePartitions, groups: object = None, queries: object = None) -> Any:
    return MetricsView(
        broker_with(
            groups=groups,
            queries=queries or NoAnswers(),
            replicas=LocalReplicas(there),
            image=SimpleNamespace(topics={}),
            clock=StillClock(),
        )
    )


async def told_by(families) -> Scrape:
    return Scrape(render([family async for family in families]))


async def test_followers_that_are_behind_are_reported_one_by_one():
    there = FakePartitions(
        [
            hosted("t", 0, watermark=10, of_2=10, of_3=4),
            hosted("t", 1, watermark=7, of_2=5, of_3=5),
        ]
    )
    told = await told_by(lag_families(fake_broker(there)))
    assert told.get("moldau_replication_lag_records", follower="2") == 2
    assert told.get("moldau_replication_lag_records", follower="3") == 8
    assert told.get("moldau_replication_lag_seconds", follower="2") == 7
    assert told.get("moldau_replication_lag_seconds", follower="3") == 10
    assert told.get("moldau_replication_lagging_partitions", follower="2") == 1
    assert told.get("moldau_replication_lagging_partitions", follower="3") == 2
    assert told.get("moldau_partitions_under_min_insync") == 1


@pytest.mark.parametrize(("partitions", "one_by_one"), [(3, True), (4, False)])
async def test_partitions_have_numbers_of_their_own_only_while_they_are_few(
    monkeypatch, partitions, one_by_one
):
    monkeypatch.setattr(limits, "PARTITIONS_MAX", 3)
    there = FakePartitions(hosted("t", number, watermark=10) for number in range(partitions))
    told = await told_by(partition_families(fake_broker(there), has_detail=False))
    assert told.get("moldau_topic_high_watermark_sum", topic="t") == 10 * partitions
    found = told.get("moldau_partition_high_watermark", topic="t", partition="1")
    assert found == (10 if one_by_one else None)


async def test_detail_shows_each_partition_up_to_a_bound(monkeypatch):
    monkeypatch.setattr(limits, "PARTITIONS_MAX", 1)
    monkeypatch.setattr(limits, "DETAIL_PARTITIONS_MAX", 3)
    there = FakePartitions(hosted("t", number, watermark=9, of_2=9) for number in range(4))
    told = await told_by(partition_families(fake_broker(there), has_detail=True))
    where = {"topic": "t", "partition": "2"}
    for name, value in {
        "high_watermark": 9,
        "log_start_offset": 1,
        "log_bytes": 100,
        "replicas": 2,
        "in_sync_replicas": 2,
        "epoch": 3,
    }.items():
        assert told.get(f"moldau_partition_{name}", **where) == value
        assert told.get(f"moldau_partition_{name}", topic="t", partition="3") is None


async def test_topics_beyond_a_bound_are_only_counted(monkeypatch):
    monkeypatch.setattr(limits, "TOPICS_MAX", 2)
    there = FakePartitions(hosted(name, 0, watermark=1) for name in "dbca")
    told = await told_by(partition_families(fake_broker(there), has_detail=False))
    assert told.get("moldau_topics_without_series") == 2
    assert [told.get("moldau_topic_log_bytes", topic=name) for name in "abcd"] == [
        100,
        100,
        None,
        None,
    ]


async def test_a_dead_broker_is_in_sync_nowhere():
    """As in the topology of `moldau broker status`: the last report of a leader may be older."""
    parts = [SimpleNamespace(replicas=(1, 2, 3), adding=()) for _ in range(3)]
    here, dead = (Leader(BrokerId(number), Epoch(4)) for number in (1, 3))
    known = [(here, (1, 2, 3)), (dead, (1, 2, 3)), (here, (1, 2))]
    view: Any = SimpleNamespace(
        brokers=dict.fromkeys((1, 2, 3)),
        alive=frozenset({1, 2}),
        topics={"t": SimpleNamespace(partitions=parts)},
        leaders_and_in_sync=lambda topic, some: known,
        broker_id=1,
        is_ready=True,
        controller_id=1,
        is_controller_known=True,
        metadata_version=1,
    )
    told = await told_by(cluster_families(view))
    assert told.get("moldau_cluster_partitions_leaderless") == 1
    assert told.get("moldau_cluster_partitions_under_replicated") == 3


class FakeGroups:
    def __init__(self, offsets: dict[str, dict[tuple[str, int], int]]) -> None:
        self.offsets = offsets
        self.error = ErrorCode.NONE

    def groups_of_each(self):
        """Each has a coordinator of its own."""
        for name in self.offsets:
            group = ListedGroup(group_id=name, protocol_type="consumer", state=GroupState.EMPTY)
            yield self.error, [group] if self.error is ErrorCode.NONE else []

    def known_offsets(self, group):
        stored = {
            TopicPartition(topic, PartitionIndex(index)): SimpleNamespace(offset=offset)
            for (topic, index), offset in self.offsets[group].items()
        }
        return SimpleNamespace(offsets=stored)


async def groups_told(groups: FakeGroups, *, has_detail: bool = False) -> Scrape:
    there = FakePartitions([hosted("t", 0, watermark=10), hosted("t", 1, watermark=20)])
    view = fake_broker(there, groups)
    return await told_by(group_families(view, LagHistory(), LeaderEnds(), has_detail=has_detail))


async def test_lag_adds_up_over_what_is_here_and_says_what_is_not():
    groups = FakeGroups({"g": {("t", 0): 4, ("t", 1): 25, ("t", 2): 1, ("u", 0): 1}})
    told = await groups_told(groups)
    # A position beyond the watermark that is known here is no negative lag.
    assert told.get("moldau_group_lag", group="g", topic="t") == 6
    assert told.get("moldau_group_lag_seconds", group="g", topic="t") == 5
    assert told.get("moldau_group_lag_unknown_partitions", group="g", topic="t") == 1
    assert told.get("moldau_group_lag_unknown_partitions", group="g", topic="u") == 1


async def test_leaders_on_other_brokers_are_asked_for_the_next_scrape(monkeypatch):
    monkeypatch.setattr(leader_ends, "REMOTE_PARTITIONS_MAX", 2)
    groups = FakeGroups({"g": {("t", 0): 4, ("u", 0): 5, ("u", 1): 9, ("u", 2): 1}})
    history, ends, asked = LagHistory(), LeaderEnds(), []

    class Queries:
        async def extents(self, wanted):
            asked.append(set(wanted))
            return {one: PartitionExtent(0, 12, 100) for one in wanted if one.partition == 0}

    there = FakePartitions([hosted("t", 0, watermark=10)])
    view = fake_broker(there, groups, queries=Queries())
    lags, unknown = [], []
    for _ in range(2):
        told = await told_by(group_families(view, history, ends))
        lags.append(told.get("moldau_group_lag", group="g", topic="u"))
        unknown.append(told.get("moldau_group_lag_unknown_partitions", group="g", topic="u"))
        assert told.get("moldau_group_lag", group="g", topic="t") == 6
        await asyncio.sleep(0)
    # One leader does not respond, and one is not asked: there would be too many.
    assert lags == [0, 7]
    assert unknown == [3, 2]
    assert (
        asked
        == [{TopicPartition("u", PartitionIndex(0)), TopicPartition("u", PartitionIndex(1))}] * 2
    )


async def test_the_lag_of_single_partitions_is_a_detail():
    groups = FakeGroups({"g": {("t", 0): 4, ("t", 1): 20}})
    told = await groups_told(groups, has_detail=True)
    where = {"group": "g", "topic": "t", "partition": "0"}
    assert told.get("moldau_group_partition_lag", **where) == 6
    assert told.get("moldau_group_partition_offset", **where) == 4
    assert not (await groups_told(groups)).series("moldau_group_partition_lag")


async def test_groups_beyond_a_bound_are_only_counted(monkeypatch):
    monkeypatch.setattr(limits, "GROUPS_MAX", 2)
    told = await groups_told(FakeGroups({name: {("t", 0): 1} for name in "dbca"}))
    assert told.get("moldau_groups", type="classic", state="Empty") == 4
    assert told.get("moldau_groups_without_series") == 2
    shown = [told.get("moldau_group_lag", group=name, topic="t") for name in "abcd"]
    assert shown == [9, 9, None, None]


async def test_a_group_with_many_topics_does_not_pass_the_bound(monkeypatch):
    monkeypatch.setattr(limits, "GROUP_SERIES_MAX", 3)
    offsets = {name: {(f"t{number}", 0): 1 for number in range(5)} for name in "ab"}
    told = await groups_told(FakeGroups(offsets))
    assert sum(name == "moldau_group_lag" for name, _ in told.values) == 3
    assert told.get("moldau_groups_without_series") == 1


async def test_transactions_are_counted_in_a_turn_for_each_coordinator():
    turns = 0

    async def count_turns():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    now = StillClock().wall_ms()
    totals = [
        TransactionTotals({"Ongoing": 1, "Empty": 2}, 1, TimestampMs(now - 5000)),
        TransactionTotals({"Empty": 1}, 0, None),
        TransactionTotals({"Ongoing": 1}, 1, TimestampMs(now - 9000)),
    ]
    sources: Any = SimpleNamespace(ended_transactions=EndedTransactions())
    parts = {"transactions": SimpleNamespace(totals=lambda: iter(totals)), "clock": StillClock()}
    view = MetricsView(broker_with(**parts))
    counting = asyncio.create_task(count_turns())
    told = await told_by(transaction_families(view, sources))
    counting.cancel()
    assert turns >= len(totals)
    assert told.get("moldau_transactional_ids", state="Empty") == 3
    assert told.get("moldau_transactions_open") == 2
    assert told.get("moldau_transactions_oldest_open_seconds") == 9
    # One that is loading leaves only the ids out.
    parts["transactions"] = SimpleNamespace(totals=lambda: iter([*totals, None]))
    told = await told_by(transaction_families(MetricsView(broker_with(**parts)), sources))
    assert not told.series("moldau_transactional_ids")
    assert told.get("moldau_transactions_open") == 2


async def test_groups_are_left_out_while_their_coordinator_loads():
    groups = FakeGroups({"g": {("t", 0): 1}})
    groups.error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert (await groups_told(groups)).values == {}


async def test_a_section_that_fails_is_left_out_and_counted(caplog):
    nothing: Any = SimpleNamespace()
    collector = Collector(nothing, lambda: nothing)
    view = fake_broker(FakePartitions([hosted("t", 0, watermark=10)]))
    for failures in (1, 2):
        caplog.clear()
        told = Scrape(await collector.text(view, has_detail=False))
        # Of this broker there are only its replicas and its process.
        assert told.get("moldau_partitions_led") == 1
        assert told.get("process_open_fds") > 0
        assert told.get("moldau_disk_free_bytes") is None
        assert len(caplog.records) > 5
        assert told.get("moldau_metrics_failures_total") == failures * len(caplog.records)
        assert all(record.exc_info for record in caplog.records)
