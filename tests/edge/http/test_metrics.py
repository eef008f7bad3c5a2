"""What a real broker tells Prometheus, and that names from clients do not make it endless."""

import asyncio
import re
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from fakes import Fake
from open_sessions import broker_with
from prometheus_client.parser import text_string_to_metric_families

from http_client import ask
from moldau.api.local_replicas import LocalReplicas
from moldau.api.metrics_view import MetricsView
from moldau.data.traffic import Traffic
from moldau.edge.http import metrics
from moldau.groups.results import GroupState, ListedGroup
from moldau.model.errors import ErrorCode
from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.model.prometheus_text import render
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system


class Scrape:
    """One answer of /metrics, by name and labels."""

    def __init__(self, text: str) -> None:
        self.kinds: dict[str, str] = {}
        self.values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in text_string_to_metric_families(text):
            assert family.documentation
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in self.values, f"{key} is told twice"
                self.values[key] = sample.value
                self.kinds[sample.name] = family.type

    def get(self, name: str, **labels: str) -> Any:
        """A number, or None if there is no such series."""
        return self.values.get((name, frozenset(labels.items())))

    def total(self, name: str) -> float:
        return sum(value for (found, _), value in self.values.items() if found == name)


def scrape(address: str) -> Scrape:
    connection = HTTPConnection(address, timeout=wait_seconds_max())
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        assert response.status == 200
        assert response.getheader("content-type") == "text/plain; version=0.0.4; charset=utf-8"
        return Scrape(response.read().decode())
    finally:
        connection.close()


def send(bootstrap: str, topic: str, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, f"value-{number}".encode(), partition=0)
    assert producer.flush(wait_seconds_max()) == 0


def commit(bootstrap: str, group: str, topic: str, offset: int) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        wanted = confluent_kafka.TopicPartition(topic, 0, offset)
        consumer.commit(offsets=[wanted], asynchronous=False)
    finally:
        consumer.close()


def test_records_requests_and_the_lag_of_groups_are_counted(moldau_session_broker, moldau_topic):
    broker, topic = moldau_session_broker, moldau_topic
    before = scrape(broker.http_address)
    assert before.get("moldau_topic_high_watermark_sum", topic=topic) == 0
    assert before.get("moldau_topic_partitions_led", topic=topic) == 1
    send(broker.bootstrap, topic, 10)
    commit(broker.bootstrap, 'a "group"', topic, 4)
    after = scrape(broker.http_address)
    assert after.get("moldau_topic_high_watermark_sum", topic=topic) == 10
    assert after.get("moldau_topic_log_bytes", topic=topic) > 100
    assert after.get("moldau_topic_log_start_offset_sum", topic=topic) == 0
    assert after.get("moldau_group_lag", group='a "group"', topic=topic) == 6
    assert after.get("moldau_group_lag_unknown_partitions", group='a "group"', topic=topic) == 0
    assert after.total("moldau_groups") >= 1
    for api in ("Produce", "OffsetCommit", "FindCoordinator"):
        grown = [each.get("moldau_kafka_requests_total", api=api) for each in (before, after)]
        assert grown[1] > grown[0]
    assert after.get("moldau_kafka_connections_accepted_total") > (
        before.get("moldau_kafka_connections_accepted_total")
    )
    assert after.get("moldau_log_flushes_total") > before.get("moldau_log_flushes_total")
    # That of the offsets, at least.
    assert after.get("moldau_leaderships_total") >= before.get("moldau_leaderships_total") >= 1


def test_what_clients_write_and_read_is_counted_by_topic(moldau_session_broker, moldau_topic):
    address = moldau_session_broker.http_address
    before = scrape(address)
    send(moldau_session_broker.bootstrap, moldau_topic, 20)
    path = f"/api/v1/topics/{moldau_topic}/records"
    assert ask(address, "POST", path, {"records": [{"value": "x" * 1000}] * 5}).status == 200
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": moldau_session_broker.bootstrap, "group.id": "unused"}
    )
    consumer.assign([confluent_kafka.TopicPartition(moldau_topic, 0, 0)])
    assert len(consumer.consume(25, 60)) == 25
    consumer.close()
    assert len(ask(address, "GET", path + "?offset=20").body["records"]) == 5
    after = scrape(address)
    written = after.get("moldau_topic_written_bytes_total", topic=moldau_topic)
    read = after.get("moldau_topic_read_bytes_total", topic=moldau_topic)
    assert 5000 < written < read
    assert after.get("moldau_topic_written_records_total", topic=moldau_topic) == 25
    assert after.get("moldau_topic_read_records_total", topic=moldau_topic) == 30
    for name, least in (("written_records", 25), ("read_records", 30), ("written_bytes", written)):
        more = after.get(f"moldau_{name}_total") - before.get(f"moldau_{name}_total")
        assert more >= least
    # A topic that is gone takes its series along, and nothing of the total.
    assert ask(address, "DELETE", f"/api/v1/topics/{moldau_topic}").status == 200
    then = scrape(address)
    assert then.get("moldau_topic_written_bytes_total", topic=moldau_topic) is None
    assert then.get("moldau_written_bytes_total") >= after.get("moldau_written_bytes_total")


def test_durations_of_requests_are_reported_by_api(moldau_session_broker, moldau_topic):
    address = moldau_session_broker.http_address
    send(moldau_session_broker.bootstrap, moldau_topic, 3)
    ask(address, "GET", "/nope")
    told = scrape(address)
    assert told.kinds["moldau_kafka_request_seconds_bucket"] == "histogram"
    for api in ("Produce", "Metadata", "ApiVersions"):
        count = told.get("moldau_kafka_request_seconds_count", api=api)
        assert 0 < count <= told.get("moldau_kafka_requests_total", api=api)
        assert told.get("moldau_kafka_request_seconds_sum", api=api) > 0
        assert told.get("moldau_kafka_request_seconds_bucket", api=api, le="+Inf") == count
        buckets = [
            value
            for (name, labels), value in told.values.items()
            if name == "moldau_kafka_request_seconds_bucket" and ("api", api) in labels
        ]
        assert buckets == sorted(buckets)
    assert told.get("moldau_kafka_inflight_bytes") >= 0
    assert told.get("moldau_http_requests_total", method="GET", status="404") >= 1
    assert told.get("moldau_http_request_seconds_count") >= 1
    assert told.get("moldau_http_connections") >= 1
    assert told.get("moldau_http_held_bytes") == 0


def test_names_say_their_unit_and_counters_that_they_only_rise(moldau_session_broker):
    told = scrape(moldau_session_broker.http_address)
    for name, kind in told.kinds.items():
        assert (kind == "counter") == name.endswith("_total"), name
        assert not name.endswith(("_ms", "_kb", "_mb", "_count_total")), name


def test_the_reference_names_every_metric(moldau_session_broker, moldau_topic):
    page = (Path(__file__).parents[3] / "docs" / "reference" / "http.md").read_text()
    told = scrape(moldau_session_broker.http_address)
    families = {
        re.sub("_(bucket|sum|count)$", "", name) if kind == "histogram" else name
        for name, kind in told.kinds.items()
    }
    missing = {name for name in families if name.startswith("moldau_") and f"`{name}" not in page}
    assert not missing


def test_a_broker_reports_itself_and_its_cluster(moldau_session_broker, moldau_topic):
    told = scrape(moldau_session_broker.http_address)
    for name, value in {
        "moldau_ready": 1,
        "moldau_controller": 1,
        "moldau_cluster_brokers": 1,
        "moldau_cluster_brokers_alive": 1,
        "moldau_cluster_partitions_leaderless": 0,
        "moldau_cluster_partitions_under_replicated": 0,
        "moldau_partitions_offline": 0,
        "moldau_compaction_failures_total": 0,
    }.items():
        assert told.get(name) == value, name
    partitions = told.get("moldau_cluster_partitions")
    assert partitions == told.get("moldau_partitions_hosted") == told.get("moldau_partitions_led")
    assert told.get("moldau_cluster_topics") >= 1
    assert 0 < told.get("moldau_disk_free_bytes") <= told.get("moldau_disk_total_bytes")
    assert told.get("process_cpu_seconds_total") > 0
    assert told.get("process_resident_memory_bytes") > 10_000_000
    assert 0 < told.get("process_open_fds") <= told.get("process_max_fds")
    assert told.get("process_start_time_seconds") > 1_600_000_000
    assert told.kinds["moldau_compaction_seconds_total"] == "counter"
    assert told.kinds["moldau_partitions_led"] == "gauge"


def hosted(topic: str, partition: int, *, watermark: int, **followers: int) -> SimpleNamespace:
    """A partition with followers that hold so much, and two of which have to be in sync."""
    log = SimpleNamespace(
        size_bytes=100,
        start_offset=1,
        end_offset=watermark,
        start=SimpleNamespace(offset=0, control_count=0),
        offset_of=lambda index: index,
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
            in_sync=lambda _: [1, *(peer for peer, one in progress.items() if one.match > 5)],
        ),
    )


class FakePartitions(list[Any], Fake):
    offline: dict[object, object] = {}

    def get(self, topic, partition):
        for one in self:
            if one.replica.partition == (topic, partition):
                return one
        return None


def fake_broker(there: FakePartitions, groups: object = None) -> Any:
    return MetricsView(broker_with(groups=groups, replicas=LocalReplicas(there)))


def told_by(families) -> Scrape:
    async def gather():
        return [family async for family in families]

    return Scrape(render(asyncio.run(gather())))


def test_followers_that_are_behind_are_reported_one_by_one():
    there = FakePartitions(
        [
            hosted("t", 0, watermark=10, of_2=10, of_3=4),
            hosted("t", 1, watermark=7, of_2=5, of_3=5),
        ]
    )
    told = told_by(metrics._hosted(fake_broker(there)))
    assert told.get("moldau_replication_lag_records", follower="2") == 2
    assert told.get("moldau_replication_lag_records", follower="3") == 8
    assert told.get("moldau_replication_lagging_partitions", follower="2") == 1
    assert told.get("moldau_replication_lagging_partitions", follower="3") == 2
    assert told.get("moldau_partitions_under_min_insync") == 1


@pytest.mark.parametrize(("partitions", "one_by_one"), [(3, True), (4, False)])
def test_partitions_have_numbers_of_their_own_only_while_they_are_few(
    monkeypatch, partitions, one_by_one
):
    monkeypatch.setattr(metrics, "PARTITIONS_MAX", 3)
    there = FakePartitions(hosted("t", number, watermark=10) for number in range(partitions))
    told = told_by(metrics._hosted(fake_broker(there)))
    assert told.get("moldau_topic_high_watermark_sum", topic="t") == 10 * partitions
    found = told.get("moldau_partition_high_watermark", topic="t", partition="1")
    assert found == (10 if one_by_one else None)


def test_topics_beyond_a_bound_are_only_counted(monkeypatch):
    monkeypatch.setattr(metrics, "TOPICS_MAX", 2)
    there = FakePartitions(hosted(name, 0, watermark=1) for name in "dbca")
    told = told_by(metrics._hosted(fake_broker(there)))
    assert told.get("moldau_topics_without_series") == 2
    assert [told.get("moldau_topic_log_bytes", topic=name) for name in "abcd"] == [
        100,
        100,
        None,
        None,
    ]


class FakeGroups:
    def __init__(self, offsets: dict[str, dict[tuple[str, int], int]]) -> None:
        self.offsets = offsets
        self.error = ErrorCode.NONE

    def list_groups(self, states, types):
        if self.error is not ErrorCode.NONE:
            return self.error, []
        return ErrorCode.NONE, [
            ListedGroup(group_id=name, protocol_type="consumer", state=GroupState.EMPTY)
            for name in self.offsets
        ]

    def known_offsets(self, group):
        stored = {
            TopicPartition(topic, PartitionIndex(index)): SimpleNamespace(offset=offset)
            for (topic, index), offset in self.offsets[group].items()
        }
        return SimpleNamespace(offsets=stored)


def groups_told(groups: FakeGroups) -> Scrape:
    there = FakePartitions([hosted("t", 0, watermark=10), hosted("t", 1, watermark=20)])
    return told_by(metrics._groups(fake_broker(there, groups)))


def test_lag_adds_up_over_what_is_here_and_says_what_is_not():
    told = groups_told(FakeGroups({"g": {("t", 0): 4, ("t", 1): 25, ("t", 2): 1, ("u", 0): 1}}))
    # A position beyond the watermark that is known here is no negative lag.
    assert told.get("moldau_group_lag", group="g", topic="t") == 6
    assert told.get("moldau_group_lag_unknown_partitions", group="g", topic="t") == 1
    assert told.get("moldau_group_lag_unknown_partitions", group="g", topic="u") == 1


def test_groups_beyond_a_bound_are_only_counted(monkeypatch):
    monkeypatch.setattr(metrics, "GROUPS_MAX", 2)
    told = groups_told(FakeGroups({name: {("t", 0): 1} for name in "dbca"}))
    assert told.get("moldau_groups", type="classic", state="Empty") == 4
    assert told.get("moldau_groups_without_series") == 2
    shown = [told.get("moldau_group_lag", group=name, topic="t") for name in "abcd"]
    assert shown == [9, 9, None, None]


def test_a_group_with_many_topics_does_not_pass_the_bound(monkeypatch):
    monkeypatch.setattr(metrics, "GROUP_SERIES_MAX", 3)
    offsets = {name: {(f"t{number}", 0): 1 for number in range(5)} for name in "ab"}
    told = groups_told(FakeGroups(offsets))
    assert sum(name == "moldau_group_lag" for name, _ in told.values) == 3
    assert told.get("moldau_groups_without_series") == 1


def test_groups_are_left_out_while_their_coordinator_loads():
    groups = FakeGroups({"g": {("t", 0): 1}})
    groups.error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert groups_told(groups).values == {}
