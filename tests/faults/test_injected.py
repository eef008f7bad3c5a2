"""Flushes that are made slow do not fail, also at the moment in which the flag comes or goes."""

import os
import threading
from pathlib import Path

import pytest

from faults.flags import put
from faults.storage.injected import inject, refused
from moldau.log import kernel_sync
from moldau.log.kernel_sync import open_kernel_syncs

pytestmark = pytest.mark.inprocess

FLAGS = 300


def test_a_flag_fails_flushes_or_makes_them_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, getattr(os, name))
    monkeypatch.setattr(kernel_sync, "is_offered", True)
    flag, trace = tmp_path / "flag", tmp_path / "trace"
    inject(str(flag), str(trace))
    assert open_kernel_syncs() is None
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
