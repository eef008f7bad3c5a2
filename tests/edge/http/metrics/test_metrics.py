"""What a real broker reports when clients use it; tests/system/test_metrics.py has the rest."""

import confluent_kafka
import pytest
from scrape import scrape

from http_client import ask
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system


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
