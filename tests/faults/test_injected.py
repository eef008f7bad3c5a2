"""Flushes that are made slow do not fail, also at the moment in which the flag comes or goes."""

import errno
import os
import threading
from pathlib import Path

import pytest

from faults.flags import put
from faults.storage.injected import inject, refused
from moldau.log.kernel_sync import KernelSyncs, open_kernel_syncs

pytestmark = pytest.mark.inprocess

FLAGS = 300


def restore_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, getattr(os, name))
    for name in ("add", "submit", "ended"):
        monkeypatch.setattr(KernelSyncs, name, getattr(KernelSyncs, name))


def test_a_flag_fails_syncs_of_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs: KernelSyncs[str] | None = open_kernel_syncs()
    if syncs is None:
        pytest.skip("this kernel has no asynchronous I/O for us")
    restore_at_the_end(monkeypatch)
    flag, trace = tmp_path / "flag", tmp_path / "trace"
    inject(str(flag), str(trace))

    def sync(tag: str) -> list[tuple[str, int]]:
        assert syncs.add(data.fileno(), tag)
        assert syncs.submit() == []
        syncs.wait()
        return syncs.ended()

    with (tmp_path / "data").open("wb") as data:
        assert sync("well") == [("well", 0)]
        put(flag, "")
        assert sync("badly") == [("badly", errno.EIO)]
        assert refused(trace) == [str(tmp_path / "data")]
        put(flag, "0.001")
        # A thread has to be slow in its place.
        assert not syncs.add(data.fileno(), "slowly")
    syncs.close()


def test_a_flag_fails_flushes_or_makes_them_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore_at_the_end(monkeypatch)
    flag, trace = tmp_path / "flag", tmp_path / "trace"
    inject(str(flag), str(trace))
    with (tmp_path / "data").open("wb") as data:
        os.fsync(data.fileno())
        assert refused(trace) == []
        put(flag, "")
        with pytest.raises(OSError, match="Input/output error"):
            os.fdatasync(data.fileno())
        assert refused(trace) == [str(tmp_path / "data")]

        flag.unlink()
        thread = threading.Thread(target=comes_and_goes, args=(flag,))
        thread.start()
        while thread.is_alive():
            os.fdatasync(data.fileno())
        thread.join()


def comes_and_goes(flag: Path) -> None:
    for _ in range(FLAGS):
        put(flag, "0.000001")
        flag.unlink()
