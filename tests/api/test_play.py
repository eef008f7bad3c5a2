"""Faults on purpose are refused where nobody makes them, and the board follows each action."""

import pytest

from harness.virtual_loop import run_virtually
from moldau.api.play import PlayService
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.model.play import NO_FAULTS, PlayAction, PlayBoard, PlayFaults, PlayKind

HEAL = PlayAction(kind=PlayKind.HEAL, by="ann")


class Ground:
    def __init__(self) -> None:
        self.steps: list[object] = []

    def faults(self) -> PlayFaults:
        return NO_FAULTS

    async def board(self, me: int) -> PlayBoard:
        self.steps.append(("board", me))
        return PlayBoard(answered_by=me, offers=(), about="", brokers=(), links=(), disks=())

    async def do(self, action: PlayAction, me: int) -> None:
        self.steps.append((action, me))


def test_without_a_playground_all_is_refused_with_the_next_step() -> None:
    service = PlayService(BrokerId(1), None)
    assert not service.is_offered()
    for work in (service.board(), service.do(HEAL)):
        with pytest.raises(RefusedError) as caught:
            run_virtually(work)
        assert caught.value.code is ErrorCode.RESOURCE_NOT_FOUND
        assert "moldau cluster start" in caught.value.hint


def test_an_action_returns_the_board_after_it() -> None:
    ground = Ground()
    service = PlayService(BrokerId(4), ground)
    assert service.is_offered()
    assert run_virtually(service.do(HEAL)).answered_by == 4
    assert ground.steps == [(HEAL, 4), ("board", 4)]
