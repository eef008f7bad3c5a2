"""An audit of a copy: each input exactly once in the output, matched by what the user says."""

from collections.abc import Callable
from typing import Any

import pytest
from pipeline_context import PlainContext

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

from moldau.client.wire.client import KafkaClient
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record, build_batch
from moldau.spark.pipelines.audit import SETTINGS, run
from moldau.spark.pipelines.spec import Outcome
from moldau.testing.broker import Broker

pytestmark = pytest.mark.spark


def record(key: bytes | None, value: bytes, *headers: tuple[str, bytes | None]) -> Record:
    return Record(Offset(0), TimestampMs(1_700_000_000_000), key, value, list(headers))


@pytest.fixture
def copied(client: KafkaClient, topic: str, new_name: Callable[[str], str]) -> str:
    name = new_name("copied")
    client.create_topic(name, partitions=1)
    return name


@pytest.fixture
def audit(spark: Any, broker: Broker, topic: str, copied: str) -> Callable[..., Outcome]:
    def audited(**values: Any) -> Outcome:
        settings = SETTINGS(
            name="check",
            bootstrap=broker.bootstrap,
            home="",
            topics=(topic,),
            against_topic=copied,
            **values,
        )
        return run(settings, PlainContext(spark))

    return audited


def wrong(outcome: Outcome) -> dict[str, int]:
    totals = outcome.details["totals"]
    kinds = ("missing", "duplicated", "extra", "altered")
    return {kind: totals[kind] for kind in kinds if totals[kind]}


def ranges(outcome: Outcome) -> dict[str, Any]:
    return {
        f"{found['topic']}-{found['partition']}": found["ranges"]
        for found in outcome.details["partitions"]
        if found["ranges"]
    }


@pytest.mark.safety
def test_each_input_is_found_once_whatever_the_order(
    client: KafkaClient, topic: str, copied: str, audit: Callable[..., Outcome]
) -> None:
    rows = [record(b"k%d" % n, b"v") for n in range(20)]
    client.produce(topic, 0, build_batch(rows[:12]))
    client.produce(topic, 1, build_batch(rows[12:]))
    client.produce(copied, 0, build_batch(rows[::-1]))
    outcome = audit()
    assert outcome.ok
    assert outcome.details["compared"] == ["key", "value"]
    assert [p["source_rows"] for p in outcome.details["partitions"][:2]] == [12, 8]
    assert outcome.details["totals"]["target_rows"] == 20
    # One twice, one that has no input; and inputs without a copy.
    client.produce(copied, 0, build_batch([rows[3], record(b"x", b"v")]))
    client.produce(topic, 1, build_batch([record(b"late", b"v"), record(b"later", b"v")]))
    # The same record twice more, and one copy of it too few.
    client.produce(topic, 0, build_batch([rows[0], rows[0]]))
    client.produce(copied, 0, build_batch([rows[0]]))
    outcome = audit()
    assert not outcome.ok
    assert wrong(outcome) == {"missing": 3, "duplicated": 1, "extra": 1}
    assert ranges(outcome) == {
        f"{topic}-0": {"missing": [[13, 13, 1]]},
        f"{topic}-1": {"missing": [[8, 9, 2]]},
        f"{copied}-0": {"duplicated": [[20, 20, 1]], "extra": [[21, 21, 1]]},
    }


def test_records_are_matched_by_headers_fields_and_sql(
    client: KafkaClient, topic: str, copied: str, audit: Callable[..., Outcome]
) -> None:
    inputs = [
        record(b"%d" % n, b'{"id": {"n": %d}, "x": 1}' % n, ("id", b"old"), ("id", b"%d" % n))
        for n in range(6)
    ]
    outputs = [record(None, b"0:%d" % n, ("id", b"%d" % n)) for n in range(6)]
    client.produce(topic, 0, build_batch(inputs))
    client.produce(copied, 0, build_batch(outputs))
    by_sql = "sql:concat(partition, ':', cast(key as string))"
    assert audit(match=("header:id",)).ok
    assert audit(match=(by_sql,), match_against=("value",)).ok
    outcome = audit(match=("field:id.n",), match_against=("header:id",))
    assert outcome.ok
    assert outcome.details["compared"] == ["field:id.n = header:id"]
    assert wrong(audit(match=("value",))) == {"missing": 6, "extra": 6}
    # A name that no value has: all are alike, and their count is no proof.
    outcome = audit(match=("field:no.such",))
    assert not outcome.ok
    assert (wrong(outcome), outcome.details["totals"]["unmatched"]) == ({}, 6)
    assert "--match" in outcome.details["notes"][0]


def test_a_copy_of_what_comes_after_the_cut_is_no_mistake(
    client: KafkaClient,
    topic: str,
    copied: str,
    audit: Callable[..., Outcome],
    broker: Broker,
) -> None:
    from moldau.client.kafka.admin import Admin

    rows = [record(b"k%d" % n, b"v") for n in range(10)]
    client.produce(topic, 0, build_batch(rows))
    client.produce(copied, 0, build_batch(rows[:7]))
    Admin(broker.bootstrap).commit_group(f"copier-{topic}", {(topic, 0): 5, (topic, 1): 0})
    outcome = audit(groups=(f"copier-{topic}",), through="group")
    assert outcome.ok
    assert outcome.details["totals"]["source_rows"] == 5
    assert wrong(audit()) == {"missing": 3}
