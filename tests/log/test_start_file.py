"""The files at the head of a log."""

import struct

import pytest

from moldau.log.checksummed_file import seal
from moldau.log.disk_log import open_disk_log
from moldau.log.interface import LogConfig, LogStart
from moldau.log.start_file import Head, load_head, save_head
from moldau.model.errors import CorruptionError
from moldau.model.ids import FIRST_LOG, Epoch, LogId, Offset
from sim.simdisk import SimDisk

START = LogStart(Offset(7), 3, Epoch(2), b"voters")


def test_a_head_is_read_as_it_was_written() -> None:
    files = SimDisk()
    files.makedirs("log")
    assert load_head(files, "log") is None
    head = Head(LogId(2**62), 4, START)
    save_head(files, "log", head)
    assert load_head(files, "log") == head


def test_a_head_from_before_logs_had_ids_is_that_of_the_first_log() -> None:
    files = SimDisk()
    files.makedirs("log")
    files.replace("log/start", seal(b"MoSt", struct.pack(">qqqi", 4, 7, 3, 2) + b"voters"))
    assert load_head(files, "log") == Head(FIRST_LOG, 4, START)


@pytest.mark.parametrize("magic", [b"MoSt", b"MoS2"])
def test_a_head_that_ends_early_is_damaged(magic: bytes) -> None:
    files = SimDisk()
    files.makedirs("log")
    files.replace("log/start", seal(magic, b"short"))
    with pytest.raises(CorruptionError, match="too short"):
        load_head(files, "log")


@pytest.mark.parametrize(
    "head",
    [
        Head(FIRST_LOG, 0, LogStart(Offset(7), 3, Epoch(-2), b"")),
        Head(FIRST_LOG, 0, LogStart(Offset(-7), 3, Epoch(2), b"")),
        Head(FIRST_LOG, 0, LogStart(Offset(7), -3, Epoch(2), b"")),
        Head(FIRST_LOG, -1, LogStart(Offset(7), 3, Epoch(2), b"")),
    ],
)
def test_an_impossible_start_is_damaged(head: Head) -> None:
    files = SimDisk()
    files.makedirs("log")
    save_head(files, "log", head)
    with pytest.raises(CorruptionError, match="cannot be a start"):
        open_disk_log(files, "log", LogConfig())
