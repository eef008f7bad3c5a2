"""What pipelines report is read from their topic, whatever else is there."""

import json
from types import SimpleNamespace
from typing import Any, cast

from moldau.api.local_replicas import LocalReplicas
from moldau.api.pipeline_reports import PIPELINES_MAX, PipelineReports
from moldau.model.errors import CorruptionError
from moldau.model.ids import Offset, TimestampMs
from moldau.records.batch import read_header
from moldau.records.compression import Codec
from moldau.records.record import Record, build_batch
from moldau.spark.pipelines.kinds import KINDS
from moldau.spark.pipelines.spec import PipelineState


class Topic:
    """The replica of the topic, of which all is committed."""

    def __init__(self) -> None:
        self.is_leader = True
        self.epoch = 1
        self.topic_id = b"1" * 16
        self.start_offset = 0
        self.batches: list[bytes] = []
        self.fails = False

    @property
    def high_watermark(self) -> int:
        return read_header(self.batches[-1]).next_offset if self.batches else 0

    def write(self, *entries: tuple[str, object], codec: Codec = Codec.NONE) -> None:
        records = [
            Record(
                Offset(0),
                TimestampMs(0),
                name.encode(),
                value if value is None or isinstance(value, bytes) else json.dumps(value).encode(),
                [],
            )
            for name, value in entries
        ]
        base = Offset(self.high_watermark)
        self.batches.append(build_batch(records, base_offset=base, codec=codec))

    def committed_batches(self, offset: int) -> Any:
        if self.fails:
            raise CorruptionError("damaged")
        for batch in self.batches:
            if (end := read_header(batch).next_offset) > offset:
                yield batch, end


def read(reports: PipelineReports, topic: Topic | None) -> dict[str, Any]:
    replicas = SimpleNamespace(get=lambda name, index: topic)
    while reports.read_some(cast(LocalReplicas, replicas)):
        pass
    return dict(reports.reports)


def status(**more: object) -> dict[str, object]:
    return {"kind": "archive", "state": "running", "settings": {"x": [1]}, **more}


def test_the_last_report_of_each_pipeline_counts() -> None:
    topic, reports = Topic(), PipelineReports()
    topic.write(("a", status()), ("b", status(progress={"batch": 3, "rows": 7, "lag": None})))
    topic.write(("a", status(state="failed")), codec=Codec.GZIP)
    found = read(reports, topic)
    assert (found["a"].state, found["b"].progress.rows) == ("failed", 7)
    topic.write(("b", None))
    assert read(reports, topic).keys() == {"a"}


def test_what_is_no_report_is_ignored() -> None:
    topic, reports = Topic(), PipelineReports()
    bad: list[object] = [b"\xff", b"", b"[" * 20_000, 7, [], {}, {"kind": 1, "state": "x"}]
    topic.write(*((f"bad {number}", value) for number, value in enumerate(bad)))
    topic.write(*((f"many {number}", status()) for number in range(2_000)))
    topic.write(("large", status(error="x" * 100_000)))
    topic.batches.append(build_batch([Record(Offset(0), TimestampMs(0), b"k", b"v" * 9, [])])[:70])
    topic.batches.pop()
    topic.write(("good", status()))
    assert read(reports, topic).keys() == {"good"}


def test_kinds_and_states_that_are_not_known_become_no_labels_and_are_counted() -> None:
    topic, reports = Topic(), PipelineReports()
    topic.write(("a", status(kind="k" * 60_000)), ("b", status(state="asleep")), ("c", status()))
    # To delete one is no bad report.
    topic.write(("d", None), ("c", status(state="")))
    assert read(reports, topic) == {}
    assert reports.dropped_count == 3


def test_every_kind_and_state_of_pipelines_is_known() -> None:
    for kind in KINDS:
        for state in PipelineState:
            topic = Topic()
            topic.write(("a", status(kind=kind, state=state)))
            found = read(PipelineReports(), topic)["a"]
            assert (found.kind, found.state) == (kind, state)


def test_more_pipelines_than_a_bound_leave_out_the_oldest() -> None:
    topic, reports = Topic(), PipelineReports()
    for number in range(PIPELINES_MAX + 5):
        topic.write((str(number), status()))
    topic.write(("3", status(state="failed")))
    found = read(reports, topic)
    assert len(found) == PIPELINES_MAX
    assert "3" in found
    assert "4" not in found


def test_only_the_leader_reports_and_a_new_topic_begins_again() -> None:
    topic, reports = Topic(), PipelineReports()
    topic.write(("a", status()))
    assert read(reports, topic).keys() == {"a"}
    topic.is_leader = False
    assert read(reports, topic) == {}
    again = Topic()
    again.topic_id = b"2" * 16
    again.write(("b", status()))
    assert read(reports, again).keys() == {"b"}
    assert read(reports, None) == {}


def test_a_damaged_topic_fails_no_scrape() -> None:
    topic, reports = Topic(), PipelineReports()
    topic.write(("a", status()))
    topic.fails = True
    assert read(reports, topic) == {}
