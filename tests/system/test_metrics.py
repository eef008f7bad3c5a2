"""Every metric of the table moves, on a live cluster, with the use that it is there for."""

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from moldau_command import run_moldau
from scrape import Scrape, scrape

from http_client import ask
from moldau import QueueClient
from moldau.edge.http.metrics.table import DEFINITIONS
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system

SETTINGS = {"LOG__COMPACTION_CHECK_MS": "100", "LOG__SCRUB_INTERVAL_MS": "1000"}
DAY_SECONDS = 86_400

ELSEWHERE = {
    "moldau_node_process_up": "tests/system/test_node.py",
    "moldau_certificate_expiry_seconds": "tests/compat/test_certificate_rotation.py",
    "moldau_logins_total": "tests/edge/http/test_login.py",
}
"""Those that need certificates, users or a node of several processes."""


class Found(NamedTuple):
    """What all brokers expose."""

    scrapes: list[Scrape]

    def sum(self, name: str, **labels: str) -> float:
        return sum(one.total(name, **labels) for one in self.scrapes)

    def series(self, name: str, **labels: str) -> list[float]:
        return [value for one in self.scrapes for value in one.series(name, **labels)]


Holds = Callable[[Found], bool]
_EXPECTED: dict[str, list[Holds]] = {}


def expect(name: str, holds: Callable[[list[float]], bool], **labels: str) -> None:
    """Of all series of the metric with these labels."""
    _EXPECTED.setdefault(name, []).append(lambda found: holds(found.series(name, **labels)))


def at_least(least: float) -> Callable[[list[float]], bool]:
    return lambda values: sum(values) >= least


def exactly(wanted: float) -> Callable[[list[float]], bool]:
    return lambda values: bool(values) and sum(values) == wanted


def each(low: float, high: float) -> Callable[[list[float]], bool]:
    return lambda values: bool(values) and all(low <= value <= high for value in values)


def happened(name: str, least: int = 1, **labels: str) -> None:
    """A histogram has at least so many durations."""
    _EXPECTED.setdefault(name, []).append(
        lambda found: (
            found.sum(f"{name}_count", **labels) >= least and found.sum(f"{name}_sum", **labels) > 0
        )
    )


def expect_of_the_cluster() -> None:
    expect("moldau_build_info", exactly(3))
    expect("moldau_ready", exactly(3))
    expect("moldau_controller", exactly(1))
    expect("moldau_controller_known", exactly(3))
    expect("moldau_metadata_version", each(5, 10_000))
    expect("moldau_cluster_brokers", exactly(9))
    expect("moldau_cluster_brokers_alive", exactly(9))
    expect("moldau_cluster_topics", each(6, 20))
    expect("moldau_cluster_partitions", each(10, 200))
    for name in (
        "metrics_failures_total",
        "cluster_partitions_leaderless",
        "cluster_partitions_under_replicated",
        "partitions_offline",
        "partitions_under_min_insync",
        "topics_without_series",
        "groups_without_series",
        "replication_lag_records",
        "replication_lag_seconds",
        "replication_lagging_partitions",
        "compaction_failures_total",
        "log_scrub_damaged_total",
        "kafka_connections_refused_total",
        # No client of this test opens one; see tests/edge/test_fetch_sessions.py.
        "kafka_fetch_sessions",
        "kafka_fetch_session_partitions",
        "kafka_fetch_sessions_evicted_total",
        "http_connections_refused_total",
        "http_requests_without_room_total",
        # Logs are too short here to delete what a follower needs; see tests/replica.
        "raft_snapshots_sent_total",
        "raft_snapshots_received_total",
    ):
        expect(f"moldau_{name}", exactly(0))
    expect("moldau_partitions_hosted", each(10, 200))
    expect("moldau_partitions_led", each(1, 200))
    # Broker 1 stopped cleanly, 2 was killed, a leader was paused.
    for cause in ("timeout", "leader_exited", "transfer"):
        expect("moldau_elections_total", at_least(1), cause=cause)
    expect("moldau_elections_won_total", at_least(3))
    expect("moldau_leaderships_total", at_least(3))
    expect("moldau_raft_epoch_changes_total", at_least(3))
    expect("moldau_raft_appends_sent_total", at_least(10))
    expect("moldau_raft_appends_received_total", at_least(10))
    expect("moldau_peer_connected", exactly(6))
    expect("moldau_peer_sent_bytes_total", each(1_000, 1e9))
    expect("moldau_peer_received_bytes_total", each(1_000, 1e9))
    # Of one machine.
    expect("moldau_peer_clock_skew_seconds", lambda found: len(found) == 6)
    expect("moldau_peer_clock_skew_seconds", each(-1, 1))
    expect("moldau_peer_round_trip_seconds", each(1e-6, 3))


def expect_of_topics() -> None:
    orders = {"topic": "orders"}
    expect("moldau_topic_log_bytes", at_least(3 * 100 * 50), **orders)
    expect("moldau_topic_partitions_led", exactly(6), **orders)
    expect("moldau_topic_high_watermark_sum", at_least(100), **orders)
    expect("moldau_topic_log_start_offset_sum", exactly(0), **orders)
    for name in ("topic_written_records", "topic_read_records"):
        expect(f"moldau_{name}_total", at_least(100), **orders)
    for name in ("topic_written_bytes", "topic_read_bytes"):
        expect(f"moldau_{name}_total", at_least(5_000), **orders)
    for name in ("written_records", "read_records"):
        expect(f"moldau_{name}_total", at_least(100))
    for name in ("written_bytes", "read_bytes"):
        expect(f"moldau_{name}_total", at_least(5_000))
    where = {"topic": "orders", "partition": "0"}
    expect("moldau_partition_high_watermark", exactly(100), **where)
    expect("moldau_partition_log_start_offset", exactly(0), **where)
    expect("moldau_partition_log_bytes", at_least(100 * 50), **where)
    expect("moldau_partition_replicas", exactly(3), **where)
    expect("moldau_partition_in_sync_replicas", exactly(3), **where)
    expect("moldau_partition_epoch", at_least(1), **where)


def expect_of_clients() -> None:
    for api in ("Produce", "Fetch", "OffsetCommit", "EndTxn"):
        expect("moldau_kafka_requests_total", at_least(1), api=api)
        happened("moldau_kafka_request_seconds", api=api)
    happened("moldau_kafka_request_queue_seconds", 10)
    happened("moldau_produce_commit_seconds", 10)
    happened("moldau_kafka_fetch_wait_seconds")
    expect("moldau_kafka_fetches_parked", at_least(1))
    expect("moldau_kafka_inflight_bytes", at_least(1))
    expect("moldau_http_tails", exactly(0))
    expect("moldau_http_held_bytes", exactly(0))
    expect("moldau_kafka_connections", at_least(1))
    expect("moldau_kafka_connections_accepted_total", at_least(5))
    expect("moldau_kafka_connections_failed_total", at_least(1))
    for protocol, least in (("kafka", 1), ("peers", 6), ("http", 3)):
        expect("moldau_listener_connections", at_least(least), protocol=protocol)
        expect("moldau_listener_connections_accepted_total", at_least(least), protocol=protocol)
    slow = {"quota": "producer_byte_rate"}
    expect("moldau_throttled_requests_total", at_least(1), **slow)
    expect("moldau_throttled_seconds_total", at_least(0.001), **slow)
    expect("moldau_http_requests_total", at_least(1), method="GET", status="404")
    happened("moldau_http_request_seconds", 3)
    expect("moldau_http_connections", at_least(3))
    expect("moldau_http_connections_accepted_total", at_least(3))


def expect_of_groups_and_queues() -> None:
    expect("moldau_groups", at_least(2))
    where = {"group": "billing", "topic": "orders"}
    expect("moldau_group_lag", exactly(60), **where)
    expect("moldau_group_lag_seconds", each(0.001, 3600), **where)
    expect("moldau_group_lag_unknown_partitions", exactly(0), **where)
    expect("moldau_group_partition_lag", exactly(60), **where, partition="0")
    expect("moldau_group_partition_offset", exactly(40), **where, partition="0")
    queue = {"group": "workers", "topic": "jobs"}
    for state, number in (("ready", 2), ("leased", 1), ("delayed", 1), ("dead", 0)):
        expect("moldau_queue_messages", exactly(number), **queue, state=state)
    # Two are delivered twice: the one that is nacked, and the one that its worker lets expire.
    expect("moldau_queue_deliveries_total", exactly(6), **queue)
    expect("moldau_queue_redeliveries_total", exactly(2), **queue)
    for outcome, number in (("ack", 2), ("nack", 2), ("expired", 1)):
        expect("moldau_queue_settled_total", exactly(number), **queue, outcome=outcome)
    expect("moldau_queue_dead_letters_total", exactly(1), **queue)
    happened("moldau_queue_settle_seconds", 2, group="workers")
    expect("moldau_transactional_ids", exactly(1), state="Ongoing")
    expect("moldau_transactions_open", exactly(1))
    expect("moldau_transactions_oldest_open_seconds", at_least(0.001))
    expect("moldau_transactions_ended_total", exactly(1), result="committed")
    expect("moldau_transactions_ended_total", exactly(1), result="aborted")


def expect_of_the_process() -> None:
    expect("moldau_log_flushes_total", at_least(10))
    happened("moldau_log_flush_seconds", 10)
    expect("moldau_log_flush_small_seconds", each(1e-7, 60))
    expect("moldau_disk_free_bytes", at_least(1))
    expect("moldau_disk_reserve_bytes", at_least(1))
    expect("moldau_disk_total_bytes", at_least(1))
    expect("moldau_log_scrubbed_bytes_total", at_least(1))
    expect("moldau_compaction_due_partitions", each(0, 10))
    for name in ("runs", "read_bytes", "written_bytes", "read_records", "dropped_records"):
        expect(f"moldau_compaction_{name}_total", at_least(1))
    expect("moldau_compaction_seconds_total", at_least(1e-6))
    happened("moldau_loop_delay_seconds", 3 * 10)
    # One was paused; the others may have been slow or not.
    expect("moldau_loop_slow_turns_total", at_least(1))
    expect("moldau_loop_slow_seconds_total", at_least(0.1))
    expect("moldau_loop_starved_seconds_total", at_least(0.1))
    pipeline = {"pipeline": "to-lake"}
    expect("moldau_pipeline_info", exactly(1), **pipeline, kind="archive", state="running")
    expect("moldau_pipeline_batches_total", exactly(8), **pipeline)
    expect("moldau_pipeline_rows_total", exactly(1234), **pipeline)
    expect("moldau_pipeline_dead_letters_total", exactly(5), **pipeline)
    expect("moldau_pipeline_lag_records", exactly(66), **pipeline)
    expect("moldau_pipeline_status_age_seconds", each(60, DAY_SECONDS), **pipeline)
    # Compaction may have removed all but the last one with the key.
    expect("moldau_pipeline_reports_dropped_total", at_least(1))
    expect("process_cpu_seconds_total", each(0.1, DAY_SECONDS))
    expect("process_resident_memory_bytes", each(1e7, 1e11))
    expect("process_virtual_memory_bytes", each(1e7, 1e13))
    expect("process_open_fds", each(10, 1e6))
    expect("process_max_fds", each(10, 1e9))
    expect("process_start_time_seconds", each(1.6e9, 1e11))


for _expectations in (
    expect_of_the_cluster,
    expect_of_topics,
    expect_of_clients,
    expect_of_groups_and_queues,
    expect_of_the_process,
):
    _expectations()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, settings=SETTINGS) as started:
        create_topics(started)
        disturb(started)
        yield started.wait_ready()


def create_topics(cluster: Cluster) -> None:
    compacted = {"cleanup.policy": "compact", "segment.bytes": "20000"}
    often = {**compacted, "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "0"}
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    wanted = [
        NewTopic("orders", 6),
        NewTopic("compacted", 1, config=often),
        NewTopic("__moldau_pipelines", 1, config=compacted),
    ]
    for created in admin.create_topics(wanted).values():
        created.result(wait_seconds_max())
    cluster.wait_ready()


def disturb(cluster: Cluster) -> None:
    """Elections of each cause. First, since counters begin again with a broker."""
    first, second, _ = cluster.brokers
    first.stop()
    first.start()
    cluster.wait_ready()
    second.kill()
    second.start()
    cluster.wait_ready()
    paused = cluster.leader("orders", 0)
    paused.pause()
    wait_until(
        lambda: cluster.leader("orders", 0) is not paused, "another one leads", ignoring=Exception
    )
    paused.resume()


def produce(cluster: Cluster, topic: str, values: list[tuple[bytes, bytes]], **more: Any) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, **more})
    for key, value in values:
        producer.produce(topic, value, key, partition=0)
    assert producer.flush(wait_seconds_max()) == 0


@contextlib.contextmanager
def consuming(cluster: Cluster) -> Iterator[None]:
    """A group with lag, and a consumer that waits for more."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "billing", "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition("orders", 0, 0)])
    assert len(consumer.consume(100, wait_seconds_max())) == 100
    committed = [confluent_kafka.TopicPartition("orders", 0, 40)]
    consumer.commit(offsets=committed, asynchronous=False)
    # It waits, and gets what is written meanwhile.
    consumer.poll(0.2)
    produce(cluster, "orders", [])
    yield
    consumer.close()


@contextlib.contextmanager
def transactions(cluster: Cluster) -> Iterator[None]:
    """One is committed, one aborted, and one open."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": "shop"}
    )
    producer.init_transactions()
    for end in (producer.commit_transaction, producer.abort_transaction, None):
        producer.begin_transaction()
        producer.produce("orders", b"paid", partition=1)
        assert producer.flush(wait_seconds_max()) == 0
        if end is not None:
            end(wait_seconds_max())
    yield


@contextlib.contextmanager
def working(cluster: Cluster) -> Iterator[None]:
    """A queue with messages in every state."""
    with QueueClient(cluster.brokers[1].grpc_address) as client:
        client.create_topic("jobs", partitions=1)
        with client.connect("workers", "jobs", attempts=2, backoff=0.001) as worker:

            def take(*expected: str, visibility: float = 600.0) -> list[Any]:
                found = worker.poll(100, wait=wait_seconds_max(), visibility=visibility)
                assert [message.value for message in found] == [one.encode() for one in expected]
                return list(found)

            client.send_many("jobs", [b"good", b"bad"])
            client.send("jobs", b"later", delay=DAY_SECONDS)
            good, bad = take("good", "bad")
            good.ack()
            bad.nack()
            # The second attempt is the last: it becomes a dead letter.
            take("bad")[0].nack()
            client.send("jobs", b"slow")
            # Its lease ends with nobody there to settle it, and it is delivered again.
            take("slow", visibility=0.1)
            take("slow")[0].ack()
            client.send("jobs", b"held")
            take("held")
            client.send_many("jobs", [b"ready", b"ready, too"])
            yield


def report_of_a_pipeline(cluster: Cluster) -> None:
    status = {
        "name": "to-lake",
        "kind": "archive",
        "state": "running",
        "progress": {"batch": 7, "rows": 1234, "lag": 66, "dead_letters": 5},
        "updated_at": int((time.time() - 120) * 1000),
    }
    values = [
        (b"to-lake", b'{"kind": "archive", "state": "starting"}'),
        (b"bad", b"\xff{"),
        (b"bad", b"[" * 10_000),
        (b"bad", b'{"kind": 7}'),
        (b"to-lake", json.dumps(status).encode()),
        (b"gone", json.dumps(status).encode()),
    ]
    produce(cluster, "__moldau_pipelines", values)
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce("__moldau_pipelines", None, b"gone")
    producer.flush(wait_seconds_max())


def misbehave(cluster: Cluster) -> None:
    """A client that breaks the protocol, one over its quota, and a request for nothing."""
    host, _, port = cluster.brokers[1].address.rpartition(":")
    with socket.create_connection((host, int(port)), wait_seconds_max()) as sock:
        sock.sendall(b"\x00\x00\x00\x08garbage!")
        assert sock.recv(1) == b""
    run_moldau("quota", "set", "Client:slow", "--produce", "100", "-b", cluster.bootstrap)
    values = [(b"", b"x" * 1000)] * 2
    for _ in range(2):
        produce(
            cluster, "compacted", [(b"k", value) for _, value in values], **{"client.id": "slow"}
        )
    for broker in cluster.brokers:
        assert ask(broker.http_address, "GET", "/nope").status == 404


def test_every_metric_of_the_table_moves_with_its_use(cluster: Cluster) -> None:
    produce(cluster, "orders", [(b"key", b"x" * 50)] * 100)
    for _ in range(3):
        produce(cluster, "compacted", [(b"%d" % (at % 5), b"x" * 500) for at in range(100)])
    report_of_a_pipeline(cluster)
    misbehave(cluster)

    def unmet() -> list[str]:
        scrapes = [scrape(broker.http_address, detail=True) for broker in cluster.brokers]
        exposed = {name for one in scrapes for name in one.families}
        assert exposed <= DEFINITIONS.keys()
        for one in scrapes:
            for name, kind in one.families.items():
                assert DEFINITIONS[name].kind == kind
        found = Found(scrapes)
        return [name for name, holds in _EXPECTED.items() if not all(h(found) for h in holds)]

    missing: list[str] = []

    def all_hold() -> bool:
        missing[:] = unmet()
        return not missing

    with consuming(cluster), transactions(cluster), working(cluster):
        wait_until(all_hold, "every metric has moved", describe=lambda: missing)


def test_the_use_of_every_metric_is_tested() -> None:
    assert _EXPECTED.keys() | ELSEWHERE.keys() == DEFINITIONS.keys()
    root = Path(__file__).parents[2]
    for name, file in ELSEWHERE.items():
        assert name in (root / file).read_text()


def test_labels_are_those_of_the_table(cluster: Cluster) -> None:
    for broker in cluster.brokers:
        for (name, labels), _ in scrape(broker.http_address, detail=True).values.items():
            family = name
            if family not in DEFINITIONS:
                family = name.rpartition("_")[0]
            having = {label for label, _ in labels} - {"le"}
            assert having == set(DEFINITIONS[family].labels), name


def test_single_partitions_are_shown_on_request_only(cluster: Cluster) -> None:
    for broker in cluster.brokers:
        told = scrape(broker.http_address)
        for name, one in DEFINITIONS.items():
            assert not (one.is_detail and name in told.families)
