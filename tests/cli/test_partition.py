"""`moldau partition` with a stand-in for the requests; the real ones: test_cluster_real.py."""

import json
from typing import Any

import pytest

from moldau.cli.errors import ExitCode
from moldau.client.errors import NotFoundError
from moldau.client.wire.partition_admin import PartitionMove, PartitionRefusal, PartitionReplicas
from moldau.model.errors import ErrorCode

pytestmark = pytest.mark.inprocess


class FakeAdmin:
    """A topic of three partitions on brokers 1, 2 and 3; a fourth broker holds nothing."""

    def __init__(self) -> None:
        self.replicas = {0: (1, 2, 3), 1: (2, 3, 1), 2: (3, 1, 2)}
        self.moved: dict[Any, Any] = {}
        self.under_way: list[list[PartitionMove]] = []
        self.refusals: list[PartitionRefusal] = []
        self.elected: list[Any] = []
        self.asked_elections: object = "nothing"

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def brokers(self):
        return [1, 2, 3, 4]

    def places(self, topic):
        if topic != "orders":
            raise NotFoundError(f"topic {topic} does not exist")
        return [
            PartitionReplicas("orders", number, on[0], on, on)
            for number, on in self.replicas.items()
        ]

    def moves(self, parts=None):
        if len(self.under_way) > 1:
            return self.under_way.pop(0)
        return self.under_way[0] if self.under_way else []

    def move(self, targets):
        self.moved = dict(targets)
        refused = {(one.topic, one.partition) for one in self.refusals}
        for (_, number), to in targets.items():
            if to is not None and ("orders", number) not in refused:
                self.replicas[number] = tuple(to)
        return self.refusals

    def elect(self, parts=None):
        self.asked_elections = parts
        return self.elected, self.refusals


@pytest.fixture
def admin(monkeypatch):
    made = FakeAdmin()
    monkeypatch.setattr("moldau.cli.partition._admin", lambda brokers: made)
    return made


def going(number: int) -> PartitionMove:
    return PartitionMove("orders", number, (1, 2, 3, 4), (4,), (3,))


def test_the_brokers_take_turns_as_leaders_of_a_whole_topic(cli, admin):
    outcome = cli("partition", "move", "orders", "--to", "1,2,4", "-y")
    assert outcome.code == 0, outcome.err
    assert list(admin.moved.values()) == [(1, 2, 4), (2, 4, 1), (4, 1, 2)]
    assert outcome.out.splitlines()[1].split() == ["orders", "0", "1,2,3", "1,2,4", "4"]
    assert outcome.err == "moved 3 partitions\n"


def test_one_partition_gets_the_order_that_was_given(cli, admin):
    assert cli("partition", "move", "orders:1", "--to", "4,1", "-y").code == 0
    assert admin.moved == {("orders", 1): (4, 1)}


def test_what_is_there_already_is_not_moved(cli, admin):
    outcome = cli("partition", "move", "orders:0", "--to", "1,2,3")
    assert (outcome.code, admin.moved) == (0, {})
    assert "already have these replicas" in outcome.err


def test_a_move_asks_first(cli, admin):
    outcome = cli("partition", "move", "orders", "--to", "1,2,4")
    assert outcome.code == ExitCode.USAGE
    assert "Move 3 partitions?" in outcome.err
    assert admin.moved == {}


def test_a_move_is_waited_for_by_default(cli, admin, monkeypatch):
    monkeypatch.setattr("moldau.cli.partition._POLL_SECONDS", 0.01)
    admin.under_way = [[going(0)], [going(0)], []]
    assert cli("partition", "move", "orders:0", "--to", "1,2,4", "-y").code == 0
    assert admin.under_way == [[]]
    admin.under_way = [[going(1)]]
    outcome = cli("partition", "move", "orders:1", "--to", "1,2,4", "-y", "--no-wait")
    assert outcome.code == 0
    assert "list-moves" in outcome.err
    outcome = cli("partition", "move", "orders:2", "--to", "1,2,4", "-y", "--timeout", "50ms")
    assert outcome.code == ExitCode.FAILED
    assert "not moved within 0.05 s" in outcome.err


def test_a_move_that_was_changed_meanwhile_is_an_error(cli, admin, monkeypatch):
    monkeypatch.setattr("moldau.cli.partition._POLL_SECONDS", 0.01)
    monkeypatch.setattr(admin, "move", lambda targets: [])
    outcome = cli("partition", "move", "orders:0", "--to", "2,4", "-y")
    assert outcome.code == ExitCode.FAILED
    assert "orders:0 is on 1,2,3: another client" in outcome.err


def test_refusals_are_named_and_the_rest_is_moved(cli, admin):
    admin.refusals = [PartitionRefusal("orders", 1, 39, "no room")]
    outcome = cli("partition", "move", "orders", "--to", "1,2,4", "-y")
    assert outcome.code == ExitCode.FAILED
    assert "cannot move orders:1: no room" in outcome.err
    assert "moved 2 partitions" in outcome.err


def test_refusals_of_everything_are_the_error(cli, admin):
    admin.refusals = [PartitionRefusal("orders", 1, 39, "no room")]
    outcome = cli("partition", "move", "orders:1", "--to", "4", "-y")
    assert outcome.code == ExitCode.FAILED
    assert outcome.err == "error: cannot move orders:1: no room\n"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["orders", "--to", "1,9"], ExitCode.NOT_FOUND, "unknown broker 9"),
        (["orders", "--to", "1,1"], ExitCode.USAGE, "contains a broker twice"),
        (["orders", "--to", "one"], ExitCode.USAGE, "not a list of broker ids"),
        (["orders:x", "--to", "1"], ExitCode.USAGE, "is not a valid partition"),
        (["orders:3", "--to", "1"], ExitCode.NOT_FOUND, "orders has partitions 0 to 2, not 3"),
        (["nothing", "--to", "1"], ExitCode.NOT_FOUND, "topic nothing does not exist"),
        (["orders"], ExitCode.USAGE, "missing option '--to'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_moves(cli, admin, arguments, code, text):
    outcome = cli("partition", "move", *arguments, "-y")
    assert outcome.code == code
    assert text in outcome.err
    assert admin.moved == {}


def test_moves_are_listed(cli, admin):
    assert cli("partition", "list-moves").err == "no moves in progress\n"
    admin.under_way = [[going(0)]]
    assert "orders" in cli("partition", "list-moves").out
    assert cli("partition", "list-moves", "-o", "name").out == "orders:0\n"
    (row,) = json.loads(cli("partition", "list-moves", "-o", "json").out)
    assert (row["adding"], row["removing"]) == ([4], [3])


def test_moves_are_taken_back(cli, admin):
    assert "nothing to cancel" in cli("partition", "cancel").err
    admin.under_way = [[going(0), going(2)]]
    assert cli("partition", "cancel").code == ExitCode.USAGE
    assert cli("partition", "cancel", "orders:0", "-y").code == 0
    assert admin.moved == {("orders", 0): None}
    assert cli("partition", "cancel", "-y").code == 0
    assert admin.moved == {("orders", 0): None, ("orders", 2): None}


def test_leaders_are_elected_where_that_changes_something(cli, admin):
    needless = PartitionRefusal("orders", 0, ErrorCode.ELECTION_NOT_NEEDED, "leads already")
    admin.refusals = [needless]
    outcome = cli("partition", "elect-leaders")
    assert (outcome.code, admin.asked_elections) == (0, None)
    assert "nothing to do" in outcome.err
    admin.elected = [("orders", 1)]
    outcome = cli("partition", "elect-leaders", "orders:0,1")
    assert outcome.code == 0
    assert admin.asked_elections == [("orders", 0), ("orders", 1)]
    assert outcome.err == "elected the preferred leader of 1 partition\n"
    admin.refusals = [
        PartitionRefusal("orders", 2, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "down")
    ]
    outcome = cli("partition", "elect-leaders", "orders")
    assert outcome.code == ExitCode.FAILED
    assert "cannot elect the preferred leader of orders:2: down" in outcome.err
