"""Syncs that the kernel runs by itself, against the kernel of this machine."""

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from moldau.log import kernel_sync
from moldau.log.kernel_sync import IN_FLIGHT_MAX, KernelSyncs, open_kernel_syncs

pytestmark = pytest.mark.inprocess


@pytest.fixture
def syncs() -> Iterator[KernelSyncs[str]]:
    syncs: KernelSyncs[str] | None = open_kernel_syncs()
    if syncs is None:
        pytest.skip("this kernel has no asynchronous I/O for us")
    yield syncs
    syncs.close()


def _all_ended(syncs: KernelSyncs[str]) -> list[tuple[str, int]]:
    results: list[tuple[str, int]] = []
    while syncs.in_flight:
        syncs.wait()
        results += syncs.ended()
    return sorted(results)


def test_files_of_one_call_are_all_synced(syncs: KernelSyncs[str], tmp_path: Path) -> None:
    for round_ in range(3):
        with ExitStack() as files:
            for number in range(5):
                file = files.enter_context(open(tmp_path / str(number), "ab"))
                file.write(b"x" * 100)
                file.flush()
                assert syncs.add(file.fileno(), f"{round_} {number}")
            assert syncs.submit() == []
        # The files are closed: the kernel holds those that it syncs.
        assert _all_ended(syncs) == [(f"{round_} {number}", 0) for number in range(5)]
    assert (syncs.submit(), syncs.ended(), syncs.in_flight) == ([], [], 0)


def test_there_is_room_for_so_many_and_again_when_they_have_ended(
    syncs: KernelSyncs[str], tmp_path: Path
) -> None:
    with open(tmp_path / "one", "wb") as file:
        for number in range(IN_FLIGHT_MAX):
            assert syncs.add(file.fileno(), str(number))
        assert not syncs.add(file.fileno(), "too many")
        refused = syncs.submit()
        assert len(refused) + len(_all_ended(syncs)) == IN_FLIGHT_MAX
        assert syncs.add(file.fileno(), "again")
        assert (syncs.submit(), _all_ended(syncs)) == ([], [("again", 0)])


def test_what_the_kernel_does_not_take_is_given_back_not_begun(
    syncs: KernelSyncs[str], tmp_path: Path
) -> None:
    with open(tmp_path / "one", "wb") as file, open(tmp_path / "two", "wb") as closed:
        number = closed.fileno()
        closed.close()
        syncs.add(file.fileno(), "good")
        syncs.add(number, "closed")
        syncs.add(file.fileno(), "after it")
        assert sorted(syncs.submit()) == ["after it", "closed"]
        assert _all_ended(syncs) == [("good", 0)]
        assert not syncs.is_refused


def test_a_kernel_that_does_not_know_them_is_not_asked_again(syncs: KernelSyncs[str]) -> None:
    # As old kernels answer for any file: a pipe cannot be synced.
    reader, writer = os.pipe()
    assert syncs.add(writer, "pipe")
    assert syncs.submit() == ["pipe"]
    assert (syncs.is_refused, syncs.add(writer, "pipe")) == (True, False)
    os.close(reader)
    os.close(writer)


def test_a_failed_sync_has_its_error(syncs: KernelSyncs[str], tmp_path: Path) -> None:
    with open(tmp_path / "one", "wb") as file:
        syncs.add(file.fileno(), "one")
        syncs.submit()
        syncs.wait()
        call = syncs._syscall

        def failing(*arguments: object) -> int:
            count = call(*arguments)
            syncs._events[0].result = -errno.EIO
            return count

        syncs._syscall = failing
        assert syncs.ended() == [("one", errno.EIO)]
        syncs._syscall = call


def test_none_where_it_is_missing_or_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> int:
        ctypes.set_errno(errno.EPERM)
        return -1

    with monkeypatch.context() as patch:
        patch.setattr(kernel_sync, "_load_syscall", lambda: refuse)
        assert open_kernel_syncs() is None
    with monkeypatch.context() as patch:
        patch.setattr("platform.machine", lambda: "sparc")
        assert open_kernel_syncs() is None
    monkeypatch.setattr(kernel_sync, "is_offered", False)
    assert open_kernel_syncs() is None
