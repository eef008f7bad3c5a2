"""A broker follows the faults that are desired of it, and no others."""

import pytest

from moldau.log.slow_filesystem import SlowFile
from moldau.model.ids import BrokerId
from moldau.model.play import NO_FAULTS, CutLink, PlayAction, PlayBoard, PlayFaults, SlowDisk
from moldau.server.machine import Machine
from moldau.server.play_faults import PlayFaultsMaker


class Ground:
    """Says what it is set to."""

    def __init__(self) -> None:
        self.wanted = NO_FAULTS

    def faults(self) -> PlayFaults:
        return self.wanted

    async def board(self, me: int) -> PlayBoard:
        raise NotImplementedError

    async def do(self, action: PlayAction, me: int) -> None:
        raise NotImplementedError


def test_faults_begin_and_end_as_is_desired() -> None:
    ground = Ground()
    made = PlayFaultsMaker(ground)
    me = BrokerId(2)
    made.look(me)
    assert (made.cuts.peers, made.delay.seconds) == (frozenset(), 0)
    ground.wanted = PlayFaults(
        links=(CutLink(1, 3), CutLink(2, 3)),
        disks=(SlowDisk(broker=1, delay_ms=9), SlowDisk(broker=2, delay_ms=250)),
    )
    made.look(me)
    assert (made.cuts.peers, made.delay.seconds) == (frozenset({3}), 0.25)
    ground.wanted = NO_FAULTS
    made.look(me)
    assert (made.cuts.peers, made.delay.seconds) == (frozenset(), 0)


@pytest.mark.parametrize("plays", [False, True])
def test_only_who_plays_has_files_that_can_be_slow(tmp_path, plays: bool) -> None:
    machine = Machine()
    assert machine.play is None
    if plays:
        machine.play = PlayFaultsMaker(Ground())
    files, lock = machine.open_directory(tmp_path)
    assert isinstance(files.open("a", create=True), SlowFile) is plays
    lock.release()
