"""The sample of a broker holds what its parts have counted."""

from types import SimpleNamespace
from typing import Any

import pytest

from harness.virtual_loop import run_virtually
from moldau.api.overview.collector import SampleCollector
from moldau.api.overview.group_lags import LagTotals
from moldau.api.overview.sample import decode_sample
from moldau.data.traffic import Traffic
from moldau.model.errors import RefusedError
from moldau.model.histogram import Histogram
from moldau.model.ids import BrokerId


class FakeReplicas(list[Any]):
    offline_count = 1

    def total_traffic(self, topics: Any) -> Traffic:
        found = Traffic()
        found.written_bytes, found.written_records, found.read_bytes = 100, 10, 300
        return found


def durations(*seconds: float) -> Histogram:
    found = Histogram()
    for each in seconds:
        found.add(each)
    return found


def collector() -> SampleCollector:
    async def totals() -> LagTotals:
        return LagTotals(3, 7, ())

    parts: dict[str, Any] = {
        "clock": SimpleNamespace(monotonic=lambda: 4.0, wall_ms=lambda: 5),
        "cluster": SimpleNamespace(
            image=SimpleNamespace(topics={}), health=lambda: ["the disk is full"]
        ),
        "replicas": FakeReplicas(
            SimpleNamespace(is_leader=number % 3 == 0, size_bytes=10) for number in range(900)
        ),
        "lags": SimpleNamespace(totals=totals),
        "topic_rates": SimpleNamespace(note=lambda: None),
        "disk_free_bytes": lambda: 1,
        "disk_total_bytes": lambda: 2,
    }
    return SampleCollector(**parts)


def test_a_broker_that_starts_has_no_sample():
    with pytest.raises(RefusedError, match="starting"):
        run_virtually(collector().sample())


def test_all_figures_are_those_of_the_parts():
    made = collector()
    sources: Any = SimpleNamespace(
        listener=SimpleNamespace(connection_count=5),
        requests_by_api=lambda: {"Produce": 3, "Fetch": 4},
        seconds_by_api=lambda: {"Produce": durations(0.001, 0.02)},
        raft=SimpleNamespace(commit_seconds=durations(0.003)),
        flusher=SimpleNamespace(seconds=durations()),
        slow_turns=lambda: SimpleNamespace(delay=durations(0.0001)),
    )
    made.attach(sources, lambda: 2)
    found = decode_sample(run_virtually(made.on_request(BrokerId(2), b"")))
    assert (found.at, found.reasons) == (4.0, ("the disk is full",))
    assert (found.replicas, found.leaders, found.log_bytes, found.offline) == (900, 300, 9000, 1)
    assert (found.bytes_in, found.bytes_out, found.records_in) == (100, 300, 10)
    assert (found.requests, found.connections) == (7, 7)
    assert (sum(found.produce), sum(found.commit), sum(found.flush)) == (2, 1, 0)
    assert (found.groups, found.lag_records) == (3, 7)
    assert found.cpu_seconds > 0
    assert found.resident_bytes is None or found.resident_bytes > 1_000_000
    assert (found.disk_free_bytes, found.disk_total_bytes) == (1, 2)
