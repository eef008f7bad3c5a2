"""The figures and the health of a cluster, from what its brokers return."""

import re
from pathlib import Path

import pytest
from top_snapshots import AT, answer, snapshot, topic, topology

import moldau.cli.top
from moldau.cli.top.compute import compute
from moldau.cli.top.poller import Answer
from moldau.client.errors import RejectedError
from moldau.edge.http.metrics.table import SECTIONS
from moldau.model.errors import ErrorCode

THREE = topology([topic("orders", [1, 2, 3])])


def metrics(**values: float) -> str:
    return "".join(f"{name} {value}\n" for name, value in values.items())


def test_a_healthy_cluster_is_one_sentence():
    found = compute(snapshot(THREE, {}))
    assert (found.health, found.problems) == ("healthy", [])
    assert found.summary == (
        "all 3 brokers respond, 3 partitions have a leader and all their replicas in sync"
    )


def test_what_older_brokers_do_not_have_is_unknown():
    found = compute(snapshot(THREE, {}))
    assert found.written_bytes is found.commit_p99_seconds is found.lag_records is None
    assert found.brokers[0].loop_delay_p99_seconds is None
    assert found.brokers[0].version is None
    assert (found.groups, found.queues, found.pipelines) == ([], [], [])


def test_rates_are_summed_over_the_brokers_that_respond():
    answers = {
        1: answer(metrics(moldau_written_bytes_total=0), metrics(moldau_written_bytes_total=2000)),
        2: answer(
            metrics(moldau_written_bytes_total=9000), metrics(moldau_written_bytes_total=400)
        ),
        3: Answer(None, "connection refused"),
    }
    found = compute(snapshot(topology(down=[3]), answers))
    assert found.written_bytes == 1200
    assert [each.written_bytes for each in found.brokers] == [1000, 200, None]
    assert found.brokers_responding == 2


def test_a_broker_that_dies_is_named_and_the_others_are_kept():
    found = compute(
        snapshot(
            topology([topic("orders", [1, 2, 1], in_sync=[1, 2])], down=[3]),
            {3: Answer(None, "cannot reach 127.0.0.1:8082 (connection refused)")},
        )
    )
    assert found.health == "degraded"
    assert found.summary == "broker 3 is not alive; 3 partitions under-replicated"
    assert [each.state for each in found.brokers] == ["ok", "ok", "down"]
    assert "moldau broker" in found.problems[0]["remedy"]


def test_a_broker_that_is_alive_and_does_not_respond_over_http():
    found = compute(snapshot(THREE, {2: Answer(None, "timed out after 2 s")}))
    assert found.health == "degraded"
    assert found.summary == "broker 2 does not respond over HTTP: timed out after 2 s"
    assert found.brokers[1].state == "no response"


def test_a_broker_that_rejects_our_login_is_not_called_dead():
    refusal = RejectedError("requires a valid user", ErrorCode.SASL_AUTHENTICATION_FAILED)
    found = compute(snapshot(THREE, {2: Answer(None, str(refusal), refusal)}))
    assert found.summary == "broker 2 rejects this user: requires a valid user"
    assert found.brokers[1].state == "rejects"


def test_partitions_without_a_leader_make_it_unavailable():
    assert compute(snapshot(topology([topic("a", [1, -1])]), {})).health == "unavailable"
    assert compute(snapshot(topology(controller=-1), {})).health == "unavailable"


def test_without_any_response_it_is_unreachable():
    silent = dict.fromkeys((1, 2, 3), Answer(None, "connection refused"))
    found = compute(snapshot(THREE, silent, unreachable_seconds=12.0))
    assert found.health == "unreachable"
    assert found.summary == "no broker has responded for 12 s; 3 brokers tried"


@pytest.mark.parametrize(
    ("new", "reasons", "summary"),
    [
        (
            metrics(moldau_disk_free_bytes=5, moldau_disk_total_bytes=100),
            (),
            "the disk of broker 1 is 95% full",
        ),
        (metrics(moldau_partitions_offline=1), (), "broker 1: 1 replica offline"),
        (
            metrics(moldau_partitions_under_min_insync=2),
            (),
            "2 partitions of broker 1 reject acks=all",
        ),
        ("", ("the disk is full",), "broker 1: the disk is full"),
    ],
)
def test_what_a_broker_reports_degrades_the_cluster(new, reasons, summary):
    found = compute(snapshot(THREE, {1: answer(None, new, *reasons)}))
    assert (found.health, found.summary) == ("degraded", summary)


def test_topics_have_rates_of_all_brokers_and_the_size_of_all_replicas():
    name = 'moldau_topic_written_bytes_total{topic="orders"}'
    size = 'moldau_topic_log_bytes{topic="orders"}'
    found = compute(
        snapshot(
            topology([topic("orders", [1, 2], in_sync=[1]), topic("__x", [-1], internal=True)]),
            {
                1: answer(f"{name} 0", f"{name} 10\n{size} 7"),
                2: answer(f"{name} 0", f"{name} 2\n{size} 5"),
            },
        )
    )
    orders, internal = found.topics
    assert (orders.written_bytes, orders.size_bytes, orders.read_bytes) == (6, 12, None)
    assert (orders.partitions, orders.replicas, orders.under_replicated) == (2, 3, 2)
    assert (internal.internal, internal.leaderless) == (True, 1)


def test_the_lag_of_groups_is_the_coordinators():
    labels = '{group="g",topic="t"}'
    lag, seconds = f"moldau_group_lag{labels}", f"moldau_group_lag_seconds{labels}"
    unknown = f"moldau_group_lag_unknown_partitions{labels}"
    found = compute(
        snapshot(
            THREE,
            {
                1: answer(None, f"{lag} 12\n{seconds} 3.5\n{unknown} 1"),
                2: answer(None, f"{lag} 10\n{seconds} 3.0\n{unknown} 0"),
            },
        )
    )
    (group,) = found.groups
    assert (group.lag_records, group.lag_seconds, group.partitions_unknown) == (12, 3.5, 1)
    assert (found.lag_records, found.lag_seconds) == (12, 3.5)


def test_queues_are_summed_over_the_leaders_of_their_partitions():
    def text(ready: int, acks: int) -> str:
        return (
            f'moldau_queue_messages{{group="g",topic="t",state="ready"}} {ready}\n'
            'moldau_queue_messages{group="g",topic="t",state="dead"} 1\n'
            f'moldau_queue_settled_total{{group="g",topic="t",outcome="ack"}} {acks}\n'
            'moldau_queue_settled_total{group="g",topic="t",outcome="nack"} 100\n'
            f'moldau_queue_settle_seconds_bucket{{group="g",le="1.0"}} {acks}\n'
            f'moldau_queue_settle_seconds_bucket{{group="g",le="+Inf"}} {acks}\n'
        )

    answers = {1: answer(text(5, 0), text(5, 8)), 2: answer(text(5, 0), text(7, 2))}
    found = compute(snapshot(THREE, answers))
    (queue,) = found.queues
    assert (queue.ready, queue.dead, queue.leased, queue.acks) == (12, 2, None, 5)
    assert queue.settle_p99_seconds == pytest.approx(0.99)
    assert (found.queue_ready, found.queue_dead, found.queue_leased) == (12, 2, None)


def test_raft_and_pipelines():
    new = (
        'moldau_elections_total{cause="timeout"} 3\nmoldau_elections_total{cause="transfer"} 1\n'
        'moldau_replication_lag_records{follower="2"} 40\n'
        'moldau_replication_lag_seconds{follower="2"} 1.5\n'
        'moldau_peer_clock_skew_seconds{peer="2"} -0.25\n'
        'moldau_pipeline_info{pipeline="p",kind="archive",state="running"} 1\n'
        'moldau_pipeline_lag_records{pipeline="p"} 9\n'
        f"process_start_time_seconds {AT - 60}\n"
    )
    found = compute(snapshot(THREE, {1: answer("", new)}))
    assert found.election_causes == {"timeout": 3, "transfer": 1}
    first, second, _ = found.brokers
    assert (first.elections_total, first.elections, first.clock_skew_seconds) == (4, 2, 0.25)
    assert first.uptime_seconds == pytest.approx(60)
    assert (second.behind_records, second.behind_seconds) == (40, 1.5)
    (pipeline,) = found.pipelines
    assert (pipeline.pipeline, pipeline.kind, pipeline.state) == ("p", "archive", "running")
    assert (pipeline.lag_records, pipeline.rows) == (9, None)


def test_it_asks_for_no_metric_that_brokers_do_not_have():
    exposed = {family.name for section in SECTIONS for family in section.families}
    asked = set()
    for path in Path(moldau.cli.top.__file__).parent.glob("*.py"):
        asked |= set(re.findall(r'"((?:moldau|process)_[a-z_]+)"', path.read_text()))
    assert len(asked) > 30
    assert {name.removesuffix("_bucket") for name in asked} <= exposed
