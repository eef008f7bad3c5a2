"""The report: what is wrong makes it fail, what is only remarkable does not."""

from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

from moldau.cli.pipeline.audit import show
from moldau.model.ids import PartitionIndex, TopicPartition
from moldau.spark.pipelines.audit.cut import Bounds, Cut
from moldau.spark.pipelines.audit.report import outcome, partition_report, undecodable
from moldau.spark.pipelines.settings.audit import AuditSettings
from moldau.spark.pipelines.spec import Outcome

Partition = dict[str, Any]
WHOLE = Bounds(0, 9, 9)


def partition(bounds: Bounds = WHOLE, **found: Any) -> Partition:
    place = TopicPartition("orders", PartitionIndex(0))
    return partition_report(place, bounds, {"source_rows": 9, "target_rows": 9}, **found)


def report(
    *partitions: Partition, lag_max: int | None = None, groups: Any = (), **values: Any
) -> Outcome:
    settings = AuditSettings(
        name="n", bootstrap="b:1", home="", topics=("orders",), table="/lake", lag_max=lag_max
    )
    cut = Cut({}, list(groups), frozenset())
    told = {"against": "/lake/orders", "compared": ("offset", "key"), **values}
    return outcome(settings, cut, partitions or (partition(),), **told)


@pytest.mark.parametrize("kind", ["missing", "duplicated", "extra", "altered"])
def test_every_kind_of_mistake_fails(kind: str) -> None:
    assert report().ok
    found: Any = {kind: 3}
    assert not report(partition(**found)).ok
    assert f"3 {kind}" in report(partition(**found)).summary


def test_dead_letters_and_what_compaction_left_do_not_fail() -> None:
    assert report(partition(dead=1)).ok
    assert report(partition(extra=1, extra_is_fine=True)).ok
    assert not report(partition(missing=1, extra_is_fine=True)).ok


def test_a_lag_fails_only_above_its_limit_and_never_having_committed_is_the_longest() -> None:
    assert report(groups=[{"end": 9, "lag": 7}]).ok
    assert report(groups=[{"end": 9, "lag": 7}], lag_max=7).ok
    assert not report(groups=[{"end": 9, "lag": 7}], lag_max=6).ok
    assert not report(groups=[{"end": 9, "lag": None}], lag_max=8).ok


def test_what_could_not_be_compared_fails_and_is_said_loudly() -> None:
    blind = report(not_compared=("value",))
    assert not blind.ok
    assert "NOT COMPARED: value" in blind.summary
    assert "--keep-raw" in blind.summary
    assert blind.details["not_compared"] == ["value"]


def test_values_that_cannot_be_decoded_fail_above_their_share() -> None:
    def at_most(share: float) -> Outcome:
        return report(undecodable=undecodable("json", 10, 1, share_max=share))

    assert at_most(0.1).ok
    assert not at_most(0.05).ok
    assert "10.00% of the values cannot be decoded" in at_most(0.05).summary


def test_an_audit_that_compares_nothing_of_what_is_there_proves_nothing() -> None:
    idle = partition(Bounds(0, 0, 9), source_rows=0, target_rows=0)
    assert report(partition(), idle).ok
    assert not report(idle).ok
    assert "nothing was compared" in report(idle).summary
    # There is nothing in the topic: nothing can be missing.
    assert report({**idle, "latest": 0}).ok
    # A copy whose records have nothing to be matched by is only counted.
    assert report(partition(unmatched=8)).ok
    assert not report(partition(unmatched=9)).ok


def test_the_table_names_offsets_and_ends_with_the_verdict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad = report(
        partition(missing=4, ranges={"missing": [[1, 3, 3], [7, 7, 1]]}),
        undecodable=undecodable("json", 10, 1, share_max=0.5),
        notes=("remember this",),
    )
    show(bad)
    said = capsys.readouterr()
    assert "missing    orders-0: offsets 1-3, 7\n" in said.out
    assert "1 of 10 values (10.00%) cannot be decoded as json" in said.out
    assert said.out.splitlines()[-1].startswith("NOT COMPLETE: orders against /lake/orders")
    assert "note: remember this" in said.err
