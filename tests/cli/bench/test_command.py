"""`moldau bench`: the arithmetic, and small runs against a real broker."""

import json
import signal

import pytest

from moldau.cli.bench.workloads import Result
from moldau.cli.errors import ExitCode
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system


def result(latencies):
    return Result(
        messages=1000,
        payload_bytes=2_000_000,
        seconds=0.5,
        client_cpu_seconds=0.1,
        latencies_ms=sorted(latencies),
    )


def test_rates_are_per_second():
    assert result([]).messages_per_second == 2000
    assert result([]).megabytes_per_second == 4


def test_percentiles_are_those_of_the_sorted_samples():
    measured = result([float(n) for n in range(1, 1001)])
    assert measured.percentile_ms(0.5) == 501
    assert measured.percentile_ms(0.99) == 991
    assert measured.percentile_ms(1.0) == 1000
    assert result([]).percentile_ms(0.5) is None
    assert result([7.0]).percentile_ms(0.999) == 7.0


@pytest.fixture
def bench(cli, moldau_session_broker):
    brokers = moldau_session_broker.bootstrap

    def call(kind, *arguments):
        outcome = cli("bench", kind, "-o", "json", "-b", brokers, *arguments)
        assert outcome.code == 0, outcome.err
        return json.loads(outcome.out)

    yield call
    left = cli("topic", "list", "-o", "name", "-b", brokers).out
    assert "moldau-bench-" not in left, "a bench deletes its topic"


@pytest.mark.safety
def test_produce_counts_what_was_acknowledged(bench):
    document = bench("produce", "-n", "3000", "-s", "100", "-p", "2", "--acks", "1")
    assert document["messages"] == 3000
    assert document["complete"] is True
    assert document["partitions"] == 2
    assert 0 < document["latency_ms"]["p50"] <= document["latency_ms"]["p999"]
    assert document["megabytes_per_second"] > 0


def test_consume_fills_its_topic_and_reads_all_of_it(bench):
    document = bench("consume", "-n", "3000", "-s", "100", "-p", "3", "--compression", "lz4")
    assert document["messages"] == 3000
    assert document["latency_ms"]["p50"] is None


def test_e2e_measures_every_message(bench):
    document = bench("e2e", "-n", "300", "--rate", "1000", "-p", "2")
    assert document["messages"] == 300
    assert 0 < document["latency_ms"]["p50"] <= document["latency_ms"]["max"]


def test_a_time_limit_ends_a_run(bench):
    document = bench("e2e", "-n", "100000", "--rate", "100", "-p", "1", "--time-max", "5s")
    assert 0 < document["messages"] < 1000
    assert document["complete"] is False


def test_a_topic_of_the_user_is_kept(bench, cli, moldau_session_broker):
    bench("produce", "-n", "1000", "--topic", "my-bench", "-p", "2")
    assert bench("consume", "-n", "1000", "--topic", "my-bench")["partitions"] == 2
    names = cli("topic", "list", "-o", "name", "-b", moldau_session_broker.bootstrap).out
    assert "my-bench" in names.splitlines()


def test_the_report_for_people_names_the_rates(cli, moldau_session_broker):
    outcome = cli("bench", "produce", "-n", "1000", "-b", moldau_session_broker.bootstrap)
    for word in ("MB/s", "msg/s", "p50", "p99", "p999"):
        assert word in outcome.out


def test_e2e_refuses_a_topic_with_other_messages(cli, nobody):
    outcome = cli("bench", "e2e", "--topic", "t", "-b", nobody)
    assert outcome.code == ExitCode.USAGE
    assert cli("bench", "e2e", "-s", "4", "-b", nobody).code == ExitCode.USAGE


def test_an_interrupted_run_leaves_no_topic_behind(cli, spawn, moldau_session_broker):
    brokers = ("-b", moldau_session_broker.bootstrap)
    process = spawn("bench", "produce", "-n", "100000000", *brokers)

    def topics():
        listed = json.loads(cli("topic", "list", "-o", "json", *brokers).out)
        return [topic["name"] for topic in listed if topic["name"].startswith("moldau-bench-")]

    def messages(name):
        document = json.loads(cli("topic", "describe", name, "-o", "json", *brokers).out)
        return sum(part["messages"] or 0 for part in document["partitions"])

    (name,) = wait_until(topics, "the bench has its topic")
    wait_until(lambda: messages(name), "messages are sent")
    process.send_signal(signal.SIGINT)
    assert process.wait(wait_seconds_max()) == ExitCode.INTERRUPTED
    assert topics() == []
