"""The report: what is wrong makes it fail, what is only remarkable does not."""

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

from moldau.cli.pipeline_audit import show
from moldau.spark.pipelines.audit.cut import GroupPosition
from moldau.spark.pipelines.audit.joining import Finding, Range
from moldau.spark.pipelines.audit.report import (
    Offsets,
    PartitionReport,
    Report,
    Undecodable,
)
from moldau.spark.pipelines.spec import Outcome


def partition(**values: Any) -> PartitionReport:
    return PartitionReport(
        topic="orders",
        partition=0,
        start=0,
        end=9,
        latest=9,
        source_rows=9,
        target_rows=9,
        source_checksum="ab" * 16,
        target_checksum="ab" * 16,
        **values,
    )


def report(*partitions: PartitionReport, **values: Any) -> Report:
    return Report(
        topics=("orders",),
        against="/lake/orders",
        compared=("offset", "key"),
        partitions=partitions or (partition(),),
        **values,
    )


@pytest.mark.parametrize("kind", ["missing", "duplicated", "extra", "altered"])
def test_every_kind_of_mistake_fails(kind: str) -> None:
    found = {Finding(kind): Offsets(rows=3, ranges=(Range(1, 3, 3),))}
    assert report().ok
    assert not report(partition(found=found)).ok
    assert f"3 {kind}" in report(partition(found=found)).summary()


def test_dead_letters_and_what_compaction_left_do_not_fail() -> None:
    assert report(partition(found={Finding.DEAD: Offsets(rows=1)})).ok
    extra = {Finding.EXTRA: Offsets(rows=1)}
    assert report(partition(found=extra, is_compacted=True)).ok
    assert not report(partition(found=extra, is_compacted=True, is_unknown=True)).ok
    assert not report(partition(found={Finding.MISSING: Offsets(rows=1)}, is_compacted=True)).ok


def test_a_lag_fails_only_above_its_limit_and_never_having_committed_is_the_longest() -> None:
    def at(committed: int | None) -> tuple[GroupPosition, ...]:
        return (GroupPosition(group="g", topic="orders", partition=0, committed=committed, end=9),)

    assert report(positions=at(2)).ok
    assert report(positions=at(2), lag_max=7).ok
    assert not report(positions=at(2), lag_max=6).ok
    assert not report(positions=at(None), lag_max=8).ok


def test_what_could_not_be_compared_fails_and_is_said_loudly() -> None:
    blind = report(not_compared=("value",))
    assert not blind.ok
    assert "NOT COMPARED: value" in blind.summary()
    assert "--keep-raw" in blind.summary()
    assert blind.document()["not_compared"] == ["value"]


def test_values_that_cannot_be_decoded_fail_above_their_share() -> None:
    def share(most: float) -> Undecodable:
        return Undecodable(format="json", values=10, undecodable=1, share_max=most)

    assert report(undecodable=share(0.1)).ok
    assert not report(undecodable=share(0.05)).ok


def test_an_audit_that_compares_nothing_of_what_is_there_proves_nothing() -> None:
    idle = replace(partition(), end=0, source_rows=0, target_rows=0)
    assert report(partition(), idle).ok
    assert not report(idle).ok
    assert "nothing was compared" in report(idle).summary()
    # There is nothing in the topic: nothing can be missing.
    assert report(replace(idle, latest=0)).ok
    # A copy whose records have nothing to be matched by is only counted.
    assert report(unmatched=8).ok
    assert not report(unmatched=9).ok


def test_the_table_names_offsets_and_ends_with_the_verdict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = {Finding.MISSING: Offsets(rows=4, ranges=(Range(1, 3, 3), Range(7, 7, 1)))}
    bad = report(
        partition(found=found),
        undecodable=Undecodable(format="json", values=10, undecodable=1, share_max=0.5),
        notes=("remember this",),
    )
    show(Outcome(ok=bad.ok, summary=bad.summary(), details=bad.document()))
    said = capsys.readouterr()
    assert "missing    orders-0: offsets 1-3, 7\n" in said.out
    assert "1 of 10 values (10.00%) cannot be decoded as json" in said.out
    assert said.out.splitlines()[-1].startswith("NOT COMPLETE: orders against /lake/orders")
    assert "note: remember this" in said.err
