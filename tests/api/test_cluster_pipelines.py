"""Pipelines as any broker lists them: read by the leader of their topic."""

import json
from types import SimpleNamespace
from typing import Any, cast

from harness.virtual_loop import run_virtually
from moldau.api.cluster_pipelines import ClusterPipelines, PipelineBoard
from moldau.api.pipeline_reports import TOPIC
from moldau.metadata.leaders import NO_LEADER, Leader
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, Epoch, Offset, TimestampMs
from moldau.records.batch import read_header
from moldau.records.record import Record, build_batch

NOW = 1_000_000


class World:
    """Two brokers; the second leads the topic."""

    def __init__(self, me: int = 1, leader: "World | None" = None) -> None:
        self.me = me
        self.leader = leader
        self.led_by = Leader(BrokerId(2), Epoch(1))
        self.topic: object = object()
        self.batches: list[bytes] = []
        self.steady = 0.0
        replica = SimpleNamespace(
            is_leader=me == 2, topic_id=b"1", epoch=1, start_offset=0, committed_batches=self._read
        )
        self.replica = replica
        self.service = ClusterPipelines(
            me=BrokerId(me),
            clock=cast(Any, SimpleNamespace(wall_ms=lambda: NOW, monotonic=self._monotonic)),
            cluster=cast(Any, self),
            replicas=cast(Any, SimpleNamespace(get=lambda name, index: replica)),
            caller=cast(Any, self),
        )

    def _monotonic(self) -> float:
        self.steady += 2.0
        return self.steady

    @property
    def image(self) -> Any:
        return SimpleNamespace(topic=lambda name: self.topic if name == TOPIC else None)

    def leader_of(self, topic: object, index: int) -> Leader:
        return self.led_by

    def _read(self, offset: int) -> Any:
        for batch in self.batches:
            if (end := read_header(batch).next_offset) > offset:
                yield batch, end

    def report(self, name: str, **status: object) -> None:
        value = json.dumps({"kind": "archive", "state": "running", "updated_at": NOW, **status})
        self.write(name, value.encode())

    def write(self, name: str, value: bytes | None) -> None:
        base = read_header(self.batches[-1]).next_offset if self.batches else Offset(0)
        record = Record(Offset(0), TimestampMs(0), name.encode(), value, [])
        self.batches.append(build_batch([record], base_offset=base))
        self.replica.high_watermark = base + 1

    async def call(self, peer: int, method: int, payload: bytes, seconds: float) -> bytes:
        if self.leader is None:
            raise RefusedError(ErrorCode.NETWORK_EXCEPTION)
        return await self.leader.service.on_request(BrokerId(self.me), payload)

    def board(self) -> PipelineBoard:
        return run_virtually(self.service.board())


def test_any_broker_lists_what_the_leader_has_read() -> None:
    leader = World(2)
    leader.report(
        "b",
        settings={"topics": ["orders", "clicks"], "target": 7},
        progress={
            "batch": 3,
            "rows": 70,
            "lag": 5,
            "batch_seconds": 0.5,
            "rows_per_second": 140.0,
            "dead_letters": 2,
        },
        host="h",
        started_at=NOW - 9,
    )
    leader.report("a", kind="audit", state="finished", outcome={"ok": False, "summary": "differ"})
    board = World(1, leader).board()
    assert board == leader.board()
    assert (board.is_complete, board.silent) == (True, [])
    audit, archive = board.pipelines
    assert (audit.name, audit.is_ok, audit.summary, audit.lag) == ("a", False, "differ", None)
    assert (audit.topics, audit.started_at_ms) == ([], None)
    assert (archive.state, archive.topics, archive.host) == ("running", ["orders", "clicks"], "h")
    assert (archive.batch, archive.rows, archive.lag, archive.dead_letters) == (3, 70, 5, 2)
    assert (archive.batch_seconds, archive.rows_per_second) == (0.5, 140.0)
    assert (archive.is_ok, archive.started_at_ms, archive.updated_at_ms) == (None, NOW - 9, NOW)


def test_a_pipeline_that_is_not_heard_of_is_lost() -> None:
    leader = World(2)
    progress = {"rows": 1, "rows_per_second": 1.0}
    leader.report("old", updated_at=NOW - 30_001, progress=progress)
    leader.report("new", updated_at=NOW - 30_000, progress=progress)
    leader.report("over", updated_at=0, state="failed", error="e" * 9_000, hint="try")
    found = {one.name: one for one in leader.board().pipelines}
    assert {name: one.state for name, one in found.items()} == {
        "old": "lost",
        "new": "running",
        "over": "failed",
    }
    assert (found["old"].rows_per_second, found["new"].rows_per_second) == (None, 1.0)
    assert (len(found["over"].error), found["over"].hint) == (2_000, "try")


def test_settings_of_any_shape_do_no_harm() -> None:
    leader = World(2)
    leader.report("a", settings={"topics": "orders"})
    leader.report("b", settings={"topics": [{"x": 1}, "t" * 300]})
    leader.write("c", b"[1]")
    leader.write("d", None)
    found = {one.name: one.topics for one in leader.board().pipelines}
    assert found == {"a": [], "b": ["{'x': 1}", "t" * 249]}


def test_without_a_topic_there_is_none_and_without_its_leader_it_is_not_known() -> None:
    world = World(1)
    assert world.board() == PipelineBoard([], False, [BrokerId(2)])
    world.led_by = NO_LEADER
    assert world.board() == PipelineBoard([], False, [BrokerId(-1)])
    world.led_by = Leader(BrokerId(1), Epoch(1))
    # It was elected, and does not know yet.
    assert world.board() == PipelineBoard([], False, [BrokerId(1)])
    world.topic = None
    assert world.board() == PipelineBoard([], True, [])


def test_a_long_topic_is_read_by_several_requests(monkeypatch: Any) -> None:
    monkeypatch.setattr("moldau.api.pipeline_reports._READ_BYTES_MAX", 120)
    leader = World(2)
    for number in range(4):
        leader.report(str(number))
    first = leader.board()
    assert not first.is_complete
    assert 0 < len(first.pipelines) < 4
    second = leader.board()
    assert (second.is_complete, len(second.pipelines)) == (True, 4)
