"""Plans as files, and whether they fit a cluster; real ones: test_operations_real.py."""

from pathlib import Path

import pytest

from moldau.cli.errors import CommandError
from moldau.cli.partition_apply import due_moves
from moldau.cli.partition_plan import FileMove, PlanFile, read_plan, write_plan
from moldau.client.wire.partition_admin import (
    ClusterBroker,
    ClusterPlaces,
    Part,
    PartitionMove,
    PartitionRefusal,
    PartitionReplicas,
)
from moldau.model.errors import ErrorCode

pytestmark = pytest.mark.inprocess

PLAN = PlanFile(
    cluster_id="c",
    moves=(
        FileMove(topic="t", partition=0, before=(1, 2), after=(2, 3), bytes=7),
        FileMove(topic="t", partition=1, before=(1, 2), after=(2, 1)),
    ),
)


def places(*replicas: tuple[int, ...], cluster_id: str = "c", live: int = 3) -> ClusterPlaces:
    return ClusterPlaces(
        cluster_id,
        [ClusterBroker(number, None) for number in range(1, live + 1)],
        [PartitionReplicas("t", number, on[0], on, on) for number, on in enumerate(replicas)],
        {"t": b""},
    )


def test_a_plan_that_fits_is_due():
    assert due_moves(PLAN, places((1, 2), (1, 2)), []) == list(PLAN.moves)


def test_moves_that_are_done_or_under_way_are_continued():
    assert due_moves(PLAN, places((2, 3), (1, 2)), []) == [PLAN.moves[1]]
    assert due_moves(PLAN, places((2, 3), (2, 1)), []) == []
    going = PartitionMove("t", 0, (2, 3, 1), (3,), (1,))
    assert due_moves(PLAN, places((2, 3, 1), (2, 1)), [going]) == [PLAN.moves[0]]


@pytest.mark.parametrize(
    ("found", "moving", "difference"),
    [
        (places((1, 2), (1, 2), cluster_id="d"), [], "the plan is for cluster c, and this is d"),
        (places((1, 3), (1, 2)), [], "t:0 is on 1,3, and was on 1,2 when the plan was made"),
        (places((1, 2)), [], "t:1 does not exist any more"),
        (places((1, 2), (1, 2), live=2), [], "t:0 would move to broker 3, which is not alive"),
        (
            places((1, 2), (1, 2)),
            [PartitionMove("t", 0, (1, 2, 3), (), (3,))],
            "t:0 is being moved to other brokers",
        ),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_as_a_whole(found, moving, difference):
    with pytest.raises(CommandError, match=difference):
        due_moves(PLAN, found, moving)


@pytest.mark.parametrize("name", ["plan.json", "plan.yaml"])
def test_a_plan_is_read_as_it_was_written(tmp_path, name):
    write_plan(tmp_path / name, PLAN)
    assert read_plan(tmp_path / name) == PLAN


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("plan.json", "{", "not a plan"),
        ("plan.json", "{}", "cluster_id"),
        ("plan.yaml", "a: [", "not a plan"),
        ("plan.yaml", "", "not a plan"),
        ("plan.json", '{"format": 2, "cluster_id": "c", "moves": []}', "its format is 2"),
    ],
)
def test_what_is_not_a_plan_is_refused(tmp_path: Path, name, text, why):
    (tmp_path / name).write_text(text)
    with pytest.raises(CommandError, match=why) as caught:
        read_plan(tmp_path / name)
    assert "moldau partition plan" in caught.value.hint


class FakeAdmin:
    """A cluster of two brokers."""

    def __init__(self, *replicas: tuple[int, ...]) -> None:
        self.found = ClusterPlaces(
            "c",
            [ClusterBroker(number, None, sizes={}) for number in (1, 2)],
            [PartitionReplicas("t", number, on[0], on, on) for number, on in enumerate(replicas)],
            {"t": b"t" * 16},
        )

    def __call__(self, *_: object) -> "FakeAdmin":
        return self

    def __enter__(self) -> "FakeAdmin":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def cluster(self) -> ClusterPlaces:
        return self.found

    def moves(self, parts: object = None) -> list[PartitionMove]:
        return []

    def move(self, targets: dict[Part, tuple[int, ...]]) -> list[PartitionRefusal]:
        self.found = self.found._replace(
            partitions=[
                one._replace(replicas=targets.get((one.topic, one.partition), one.replicas))
                for one in self.found.partitions
            ]
        )
        return []

    def places(self, topic: str) -> list[PartitionReplicas]:
        return self.found.partitions

    def elect(self, parts: object) -> tuple[list[Part], list[PartitionRefusal]]:
        return [("t", 0)], [
            PartitionRefusal("t", 1, ErrorCode.ELECTION_NOT_NEEDED, "leads already"),
            PartitionRefusal("t", 2, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "not in sync"),
        ]


def test_preferred_leaders_that_were_not_elected_are_named(cli, tmp_path, monkeypatch):
    admin = FakeAdmin((1, 2), (1, 2), (1, 2))
    monkeypatch.setattr("moldau.client.wire.partition_admin.PartitionAdmin", admin)
    moves = [FileMove(topic="t", partition=n, before=(1, 2), after=(2, 1)) for n in range(3)]
    write_plan(tmp_path / "plan.json", PlanFile(cluster_id="c", moves=tuple(moves)))
    applied = cli("partition", "apply", tmp_path / "plan.json", "-y")
    assert (applied.code, "moved 3 partitions" in applied.err) == (0, True), applied.err
    assert "not led by its preferred leader yet: t:2: not in sync" in applied.err
    assert "moldau partition elect-leaders" in applied.err
    assert "t:1" not in applied.err


def test_a_plan_without_moves_replaces_an_older_one_and_is_carried_out(cli, tmp_path, monkeypatch):
    admin = FakeAdmin((1, 2), (2, 1))
    monkeypatch.setattr("moldau.client.wire.partition_admin.PartitionAdmin", admin)
    path = tmp_path / "plan.json"
    write_plan(path, PLAN)
    planned = cli("partition", "plan", "--file", path)
    assert (planned.code, "the cluster is balanced" in planned.err) == (0, True), planned.err
    assert read_plan(path) == PlanFile(cluster_id="c", moves=())
    applied = cli("partition", "apply", path)
    assert (applied.code, applied.err) == (0, "nothing to do: the plan has no moves\n")
