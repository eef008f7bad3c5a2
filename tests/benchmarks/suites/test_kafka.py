import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.apache_kafka import Distribution
from benchmarks.bench import Bench
from benchmarks.beside import CASES, Case
from benchmarks.harness import BenchmarkError
from benchmarks.suites import kafka, kafka_shapes

pytestmark = pytest.mark.system


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(directory=tmp_path, quick=True)


def case(metric: str) -> Case:
    (found,) = [one for one in CASES if one.metric == metric]
    return found


def test_both_suites_are_skipped_with_one_line_where_kafka_cannot_run(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    kafka.run(bench)
    kafka_shapes.run(bench)
    assert bench.notes == ["Apache Kafka was skipped: there is no Java 17 or newer."]
    assert not bench.values
    assert not bench.versions


def test_a_cluster_takes_a_part_of_the_load_of_one_broker(bench: Bench) -> None:
    one, three = (
        kafka.specification(bench, case(f"beside.{brokers}.never.small")) for brokers in (1, 3)
    )
    assert one["count"] * kafka.CLUSTER_SHARE == three["count"]
    assert {**one, "count": 0} == {**three, "count": 0}
    assert one["acks"] == -1


def test_transactions_have_a_partition_for_each_producer(bench: Bench) -> None:
    spec = kafka.specification(bench, case("beside.3.always.transactions.8"))
    assert spec["partitions"] == spec["producers"] == 8
    assert spec["seconds"] > 0


@pytest.mark.parametrize(
    ("minutes", "count"), [(0.2, 2), (1, 2), (2, 2), (2.5, 3), (3, 3), (60, 60)]
)
def test_a_long_run_is_cut_into_turns_of_at_most_a_minute(minutes: float, count: int) -> None:
    found = kafka_shapes.slices(minutes)
    assert len(found) == count
    assert sum(found) == pytest.approx(minutes * 60)
    assert max(found) <= kafka_shapes.SLICE_SECONDS_MAX


def test_a_case_that_fails_ends_no_other_and_is_reported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def nothing_runs(*_: object) -> Iterator[kafka.Running]:
        yield []

    monkeypatch.setattr(kafka, "started", nothing_runs)
    failing, *others = [one for one in CASES if one.brokers == 1 and one.flush == "never"]
    measured = []

    def measure(one: Case, _: kafka.Running) -> None:
        if one == failing:
            raise BenchmarkError("no space")
        measured.append(one)

    found = Distribution(folder=Path(), version="4", java=Path(), java_version="17")
    with pytest.raises(BenchmarkError, match=f"^{failing.name}: no space$"):
        kafka.play(bench, found, [failing, *others], measure)
    assert measured == others
