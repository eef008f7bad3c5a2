"""What requests ask of whoever makes the faults, and what they get where nobody does."""

import json
from typing import Any

import pytest

from http_cluster import FakeCluster, Served, served
from moldau.model.play import NO_FAULTS, PlayAction, PlayBoard, PlayFaults, PlayKind

pytestmark = pytest.mark.system

PATHS: dict[str, Any] = {
    "brokers/1": {"action": "kill"},
    "links": {"a": 1, "b": 2, "is_cut": True},
    "disks": {"broker": 1, "delay_ms": 1},
    "heal": {},
}
BOARD = PlayBoard(answered_by=1, offers=(), about="", brokers=(), links=(), disks=())


class Ground:
    """Remembers what it is asked for."""

    def __init__(self) -> None:
        self.done: list[PlayAction] = []

    def faults(self) -> PlayFaults:
        return NO_FAULTS

    async def board(self, me: int) -> PlayBoard:
        return BOARD

    async def do(self, action: PlayAction, me: int) -> None:
        self.done.append(action)


def post(world: Served, path: str, body: Any) -> tuple[int, dict[str, str], Any]:
    return world.ask("POST", f"/api/v1/play/{path}", json.dumps(body).encode())


def test_a_broker_for_real_use_cannot_be_played_with() -> None:
    with served() as world:
        assert world.ask("GET", "/api/v1/me")[2]["play"] is False
        replies = [world.ask("GET", "/api/v1/play")]
        replies += [post(world, path, body) for path, body in PATHS.items()]
        for status, _, body in replies:
            assert (status, body["error"]) == (404, "RESOURCE_NOT_FOUND")
            assert "started for real use" in body["detail"]
            assert "moldau cluster start" in body["hint"]


def test_each_request_is_one_action_by_who_sent_it() -> None:
    ground = Ground()
    with served(ground=ground) as world:
        assert world.ask("GET", "/api/v1/me")[2]["play"] is True
        assert world.ask("GET", "/api/v1/play")[2]["answered_by"] == 1
        for path, body in (
            ("brokers/2", {"action": "kill"}),
            ("brokers/2", {"action": "pause"}),
            ("brokers/2", {"action": "pause", "seconds": 3}),
            ("links", {"a": 3, "b": 1, "is_cut": True}),
            ("links", {"a": 1, "b": 3, "is_cut": False}),
            ("disks", {"broker": 3, "delay_ms": 70}),
            ("heal", {}),
        ):
            assert post(world, path, body)[0] == 200
    assert {action.by for action in ground.done} == {"User:ANONYMOUS at 127.0.0.1"}
    assert [str(action) for action in ground.done] == [
        "kill broker 2",
        "pause broker 2 for 10 s",
        "pause broker 2 for 3 s",
        "cut the link between brokers 1 and 3",
        "mend the link between brokers 1 and 3",
        "delay each flush of broker 3 by 70 ms",
        str(PlayAction(kind=PlayKind.HEAL, by="")),
    ]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("brokers/1", {}),
        ("brokers/1", {"action": "link"}),
        ("brokers/1", {"action": "pause", "seconds": 1.5}),
        ("brokers/1", {"action": "pause", "seconds": 121}),
        ("brokers/1", {"action": "kill", "after_seconds": 5}),
        ("links", {"a": 1, "b": 2}),
        ("links", {"a": -1, "b": 2, "is_cut": True}),
        ("disks", {"broker": 1, "delay_ms": 5001}),
        ("disks", {"broker": 1, "delay_ms": -1}),
        ("heal", {"broker": 1}),
        ("heal?x=1", {}),
    ],
)
def test_nothing_is_done_by_a_request_that_is_not_as_expected(path: str, body: Any) -> None:
    ground = Ground()
    with served(FakeCluster(), ground=ground) as world:
        assert post(world, path, body)[0] == 400
    assert ground.done == []
