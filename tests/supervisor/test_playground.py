"""Who makes faults for a broker: its supervisor, or itself where there is none."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from supervised_world import World

from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.play import NO_FAULTS, PlayAction, PlayKind, SlowDisk
from moldau.supervisor.play_faults import FaultsReader
from moldau.supervisor.playground import LonePlay, SupervisedPlay

pytestmark = pytest.mark.system


def action(kind: PlayKind, broker: int = 1, **more: int) -> PlayAction:
    return PlayAction(kind=kind, by="ann", broker=broker, **more)  # type: ignore[arg-type]


def refusal(work: Callable[[], object]) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        work()
    assert caught.value.hint
    return caught.value


@pytest.fixture
def stepped(tmp_path: Path) -> Iterator[World]:
    """A supervisor that runs in a thread, with two brokers."""
    world = World(tmp_path, 2)
    world.until(lambda: world.all("ready"))
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            world.supervisor.step(0.02)

    thread = threading.Thread(target=run)
    thread.start()
    yield world
    stop.set()
    thread.join()
    world.supervisor.close()


def test_a_broker_asks_its_supervisor(stepped: World) -> None:
    play = SupervisedPlay(stepped.directory)

    async def scenario() -> None:
        await play.do(action(PlayKind.PAUSE, 2, seconds=60), 1)
        await play.do(action(PlayKind.LINK, 1, other=2), 1)
        board = await play.board(1)
        assert [(each.id, each.state) for each in board.brokers] == [(1, "ready"), (2, "paused")]
        assert board.brokers[1].resumes_in_ms == 60_000
        assert board.brokers[1].http == "127.0.0.1:3"
        assert set(board.offers) == set(PlayKind)
        assert play.faults().cut_from(2) == {1}
        # It answers before it is hit itself; the time of this supervisor stands still.
        await play.do(action(PlayKind.KILL, 1), 1)
        assert (await play.board(1)).brokers[0].state == "ready"
        await play.do(action(PlayKind.HEAL), 1)
        assert (await play.board(1)).links == ()

    asyncio.run(scenario())
    assert play.faults() == NO_FAULTS


def test_what_the_supervisor_refuses_is_refused_with_its_words(stepped: World) -> None:
    play = SupervisedPlay(stepped.directory)
    wrong = refusal(lambda: asyncio.run(play.do(action(PlayKind.KILL, 9), 1)))
    assert (wrong.code, str(wrong)) == (
        ErrorCode.BROKER_ID_NOT_REGISTERED,
        "there is no broker 9 in this cluster",
    )
    with pytest.raises(RefusedError, match="is not paused"):
        asyncio.run(play.do(action(PlayKind.RESUME, 1), 1))


def test_without_a_supervisor_nothing_can_be_done(tmp_path: Path) -> None:
    play = SupervisedPlay(tmp_path)
    for work in (play.board(1), play.do(action(PlayKind.KILL), 1)):
        found = refusal(lambda at=work: asyncio.run(at))  # type: ignore[misc]
        assert found.code is ErrorCode.BROKER_NOT_AVAILABLE
    assert play.faults() == NO_FAULTS


@pytest.mark.parametrize("text", ["", "{", "[]", '{"links":[1]}', "\xff"])
def test_a_broken_file_is_no_fault_and_no_end(tmp_path: Path, text: str) -> None:
    (tmp_path / "play.json").write_text(text)
    assert FaultsReader(tmp_path).faults() == NO_FAULTS


def test_a_broker_alone_slows_its_disk_and_has_no_links() -> None:
    play = LonePlay(print)

    async def scenario() -> None:
        await play.do(action(PlayKind.DISK, 4, delay_ms=30), 4)
        board = await play.board(4)
        assert board.disks == (SlowDisk(broker=4, delay_ms=30),)
        assert set(board.offers) == {PlayKind.KILL, PlayKind.DISK, PlayKind.HEAL}
        assert "moldau cluster start" in board.about
        await play.do(action(PlayKind.HEAL), 4)
        assert play.faults() == NO_FAULTS
        for kind in (PlayKind.PAUSE, PlayKind.RESTART, PlayKind.LINK):
            with pytest.raises(RefusedError):
                await play.do(action(kind, 4), 4)
        with pytest.raises(RefusedError, match="no broker 5"):
            await play.do(action(PlayKind.KILL, 5), 4)

    asyncio.run(scenario())


def test_a_broker_alone_says_why_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))

    async def scenario() -> None:
        await LonePlay(said.append).do(action(PlayKind.KILL, 1), 1)
        assert killed == []
        while not killed:
            await asyncio.sleep(0.01)

    asyncio.run(scenario())
    assert killed == [(os.getpid(), signal.SIGKILL)]
    assert said == ["killed, as requested by ann; start it again: moldau dev"]
