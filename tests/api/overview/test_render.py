"""The overview of what brokers said, what it says of those that did not, and to whom."""

from typing import Any

from handler_calls import brokers

from moldau.api.overview.render import (
    Points,
    View,
    overview_of,
    shown_events,
    topics_named,
    without_topics,
)
from moldau.api.overview.sample import BrokerSample, LaggingGroupSample
from moldau.control.cluster_events import ClusterEvent
from moldau.control.cluster_scan import LatePartition, LeaderlessPartition, Scan
from moldau.model.cluster_problems import Tally
from moldau.model.histogram import Histogram
from moldau.model.ids import BrokerId

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)


def sample(at: float, **fields: Any) -> BrokerSample:
    return BrokerSample(at=at, version="1", started_at_ms=7, **fields)


def scan_of(
    *, down: tuple[int, ...] = (), leaderless: str = "", late: str = "", controller: int = 1
) -> Scan:
    tally = Tally()
    tally.topics = 2
    tally.add("orders", 1, (1, 2, 3), [])
    if leaderless:
        tally.add(leaderless, -1, (1, 2, 3), [])
    if late:
        tally.add(late, 1, (1, 2, 3), [3])
    return Scan(
        tally.condition(controller=controller, down=down),
        [LeaderlessPartition(leaderless, 1)] if leaderless else [],
        [LatePartition(late, 2, [3])] if late else [],
        17,
    )


def view(**fields: Any) -> View:
    given: dict[str, Any] = {
        "at_ms": 5,
        "cluster_id": "c",
        "me": ONE,
        "brokers": brokers(1, 2, 3),
        "alive": frozenset({1, 2, 3}),
        "scan": scan_of(),
        "old": {},
        "new": {each: sample(2.0) for each in (ONE, TWO, THREE)},
    }
    return View(**{**given, **fields})


def test_a_healthy_cluster():
    found = overview_of(view())
    assert found.health.state == "healthy"
    assert found.health.sentence.startswith("all 3 brokers respond, 1 partition has a leader")
    assert (found.controller, found.metadata_version, found.answered_by) == (1, 17, 1)
    assert [each.is_controller for each in found.brokers] == [True, False, False]
    # The first time there is nothing to compare with.
    assert found.rates.bytes_in is None
    assert found.brokers[0].cpu is None


def test_rates_and_lag_are_of_all_brokers_together():
    found = overview_of(
        view(
            old={each: sample(0.0) for each in (ONE, TWO)},
            new={
                ONE: sample(
                    2.0,
                    bytes_in=200,
                    cpu_seconds=1.0,
                    groups=3,
                    lag_records=5,
                    lagging=(LaggingGroupSample("g", 5, 1.5),),
                ),
                TWO: sample(
                    4.0,
                    bytes_in=400,
                    groups=1,
                    lag_records=9,
                    lagging=(LaggingGroupSample("h", 9, None),),
                ),
                THREE: sample(2.0),
            },
        )
    )
    assert found.rates.bytes_in == 200
    assert [each.bytes_in for each in found.brokers] == [100, 100, None]
    assert found.brokers[0].cpu == 0.5
    assert found.lag.records == 14
    assert [(each.group, each.lag, each.lag_seconds) for each in found.lag.groups] == [
        ("h", 9, None),
        ("g", 5, 1.5),
    ]
    assert found.counts.groups == 4


def test_quantiles_are_of_the_time_between_two_samples():
    slow = Histogram()
    slow.add(0.3, 10)
    nothing = tuple(Histogram().counts)
    found = overview_of(
        view(
            old={ONE: sample(0.0, produce=nothing, flush=nothing)},
            new={ONE: sample(2.0, produce=tuple(slow.counts), flush=tuple(slow.counts))},
        )
    )
    assert found.latency.produce_p99_ms is not None
    assert 250 < found.latency.produce_p99_ms <= 500
    assert found.brokers[0].flush_ms == found.latency.flush_p99_ms
    assert found.latency.commit_p99_ms is None


def test_a_broker_that_does_not_respond_is_a_problem_of_its_own_only_while_it_is_alive():
    found = overview_of(view(new={ONE: sample(2.0), TWO: sample(2.0)}))
    assert found.brokers[2].silent
    assert found.brokers[2].version is None
    assert found.health.state == "degraded"
    assert found.health.sentence == "broker 3 did not respond in time"
    dead = overview_of(
        view(
            new={ONE: sample(2.0), TWO: sample(2.0)},
            alive=frozenset({1, 2}),
            scan=scan_of(down=(3,)),
        )
    )
    assert dead.health.sentence == "broker 3 is not alive"


def test_what_cannot_be_written_is_failing():
    assert overview_of(view(scan=scan_of(leaderless="t"))).health.state == "failing"
    assert overview_of(view(scan=scan_of(controller=-1))).health.state == "failing"
    assert overview_of(view(scan=scan_of(late="t"))).health.state == "degraded"


def test_what_brokers_say_of_themselves_is_a_problem():
    full = sample(
        2.0, reasons=("no heartbeat",), disk_free_bytes=1, disk_total_bytes=100, offline=2
    )
    found = overview_of(view(new={ONE: sample(2.0), TWO: full, THREE: sample(2.0)}))
    assert [(each.broker, each.text) for each in found.health.problems] == [
        (2, "broker 2: no heartbeat"),
        (2, "the disk of broker 2 is 99% full"),
        (2, "broker 2: 2 replicas offline"),
    ]


def test_names_of_hidden_topics_are_left_out_and_still_counted():
    found = overview_of(view(scan=scan_of(leaderless="secret", late="late")))
    found.events.extend(
        shown_events(
            [
                ClusterEvent(id=2, at_ms=1, kind="topic_created", text="secret", topic="secret"),
                ClusterEvent(id=1, at_ms=1, kind="broker_lost", text="broker 2", broker=2),
            ]
        )
    )
    assert topics_named(found) == {"secret", "late"}
    assert without_topics(found, frozenset()) is found
    shown = without_topics(found, frozenset({"secret"}))
    assert shown.leaderless == []
    assert [each.topic for each in shown.under_replicated] == ["late"]
    assert [each.id for each in shown.events] == [1]
    assert shown.counts.leaderless == 1
    assert "secret" not in str(shown)
    (problem,) = [each for each in shown.health.problems if "leader" in each.text]
    assert problem.remedy == "see its replicas: moldau topic describe TOPIC"
    assert "secret" in str(found)


def test_history_has_a_point_for_each_overview():
    points = Points()
    for _ in range(3):
        points.add(overview_of(view()))
    found = points.history()
    assert found.at_ms == [5, 5, 5]
    assert found.lag == found.bytes_in == [None, None, None]
