"""Files of the data directory: a log with its segment, index, journal, start and snapshots; votes.

The files of a real log are kept, and an input changes them: it is a row of edits, each with the
number of a file, a position and new bytes. Checksums are written again for half of the edits, so
that readers are reached which a flipped bit never reaches.
"""

import struct
from collections.abc import Iterator
from functools import cache
from typing import Final

from crc32c import crc32c

from fuzz.parts import join, split
from fuzz.target import Target, check
from moldau.log.checksummed_file import seal
from moldau.log.datadir import Identity, read_identity, write_identity
from moldau.log.disk_log import DiskLog, open_disk_log, read_slice
from moldau.log.flush_mark import HEADER_BYTES
from moldau.log.interface import ControlKind, LogConfig
from moldau.log.vote_journal import VoteJournal
from moldau.model.errors import CorruptionError, StorageError
from moldau.model.ids import BrokerId, Epoch, Offset, TimestampMs
from moldau.records.batch import CRC_AT, CRC_START
from moldau.testing.logs import append, flush
from sim.simdisk import SimDisk

_DIRECTORY: Final = "log"
_IDENTITY: Final = "broker.json"
_CONFIG: Final = LogConfig(index_interval_bytes=128, segment_bytes_max=HEADER_BYTES + 1024)
_EDIT: Final = struct.Struct(">BBH")
"""File, whether checksums are written again, position."""
_MARK_BYTES: Final = 84
_JOURNAL_FRAME: Final = struct.Struct(">II")
_VOTE_HEAD: Final = struct.Struct(">4sQII")
_READ_MAX: Final = 64


def _write_log(disk: SimDisk) -> DiskLog:
    log = open_disk_log(disk, _DIRECTORY, _CONFIG)
    log.append_control(Epoch(1), ControlKind.NOOP, b"")
    for number in range(12):
        epoch = 1 if number < 6 else 2
        append(log, count=2, epoch=epoch, value=b"value-%d" % number, time=1000 + number)
        if number == 5:
            flush(log)
            log.append_control(Epoch(2), ControlKind.NOOP, b"")
    flush(log)
    log.save_snapshot(Offset(4), b"state")
    log.delete_before(Offset(2))
    return log


@cache
def _files() -> dict[str, bytes]:
    """Of a log that was closed cleanly, by path."""
    disk = SimDisk()
    log = _write_log(disk)
    log.close()
    names = sorted(disk.listdir(_DIRECTORY))
    return {f"{_DIRECTORY}/{name}": disk.read(f"{_DIRECTORY}/{name}") for name in names}


def _edited(data: bytes) -> SimDisk:
    contents = {path: bytearray(content) for path, content in _files().items()}
    paths = sorted(contents)
    for part in split(data)[:16]:
        if len(part) < _EDIT.size:
            continue
        number, is_sealed, position = _EDIT.unpack_from(part)
        path = paths[number % len(paths)]
        content = contents[path]
        position %= len(content) + 1
        content[position : position + len(part) - _EDIT.size] = part[_EDIT.size :]
        if is_sealed % 2:
            _seal(path, content)
    disk = SimDisk()
    disk.makedirs(_DIRECTORY)
    for path, content in contents.items():
        disk.replace(path, bytes(content))
    return disk


def _seal(path: str, content: bytearray) -> None:
    """Write the checksums of a file again, where its format still can be recognised."""
    if path.endswith(".log"):
        for slot in (0, 2048):
            end = slot + _MARK_BYTES
            if len(content) >= end + 4:
                struct.pack_into(">I", content, end, crc32c(bytes(content[slot:end])))
        position = HEADER_BYTES
        while len(content) - position >= HEADER_BYTES // 64:
            size = int.from_bytes(content[position + 8 : position + 12], "big") + 12
            if not CRC_START <= size <= len(content) - position:
                return
            crc = crc32c(bytes(content[position + CRC_START : position + size]))
            struct.pack_into(">I", content, position + CRC_AT, crc)
            position += size
    elif path.endswith(".journal"):
        position = 0
        while len(content) - position >= _JOURNAL_FRAME.size:
            size, _ = _JOURNAL_FRAME.unpack_from(content, position)
            body = bytes(content[position + 8 : position + 8 + size])
            if not size or len(body) != size:
                return
            _JOURNAL_FRAME.pack_into(content, position, size, crc32c(body))
            position += 8 + size
    elif len(content) >= 8:
        content[:] = seal(bytes(content[:4]), bytes(content[8:]))


def _open_log(data: bytes) -> None:
    """A log opens or is corrupt. What opens can be read, extended and opened again."""
    disk = _edited(data)
    log = open_disk_log(disk, _DIRECTORY, _CONFIG)
    check(log.start_offset <= log.end_offset, "a log ends before it starts")
    log.load_snapshot()
    offset = log.start_offset
    for _ in range(_READ_MAX):
        if offset >= log.end_offset:
            break
        read = log.read(offset, 4096, log.end_offset)
        check(len(read_slice(read.data)) == read.size, "a read has another size than it says")
        if not read.size:
            break
        offset = Offset(offset + 1)
    log.find_time(TimestampMs(1005), log.end_offset)
    log.find_max_timestamp(log.end_offset)
    end = log.end_offset
    epoch = max(log.last_epoch, 1)
    if epoch < 2**31 - 1 and end < 2**62:
        append(log, epoch=epoch)
        flush(log)
        log.close()
        check(open_disk_log(disk, _DIRECTORY, _CONFIG).end_offset == end + 1, "an append is lost")


def _votes_file(entries: list[bytes]) -> bytes:
    """Each entry: eight bytes of number, the rest is the payload."""
    content = bytearray()
    for entry in entries:
        number, payload = int.from_bytes(entry[:8], "big"), entry[8:]
        crc = crc32c(struct.pack(">QI", number, len(payload)) + payload)
        content += _VOTE_HEAD.pack(b"MoVt", number, len(payload), crc) + payload
    return bytes(content)


def _open_votes(data: bytes) -> None:
    disk = SimDisk()
    # Half of the inputs are the file itself, the others get checksums.
    is_raw = bool(data) and data[0] % 2 == 1
    disk.replace("votes", data[1:] if is_raw else _votes_file(split(data[1:])[:16]))
    journal = VoteJournal.open(disk, "votes")
    journal.record({"group": (Epoch(7), BrokerId(1))})
    journal.close()
    again = VoteJournal.open(disk, "votes")
    check(again.get("group") == (Epoch(7), BrokerId(1)), "a vote is lost")


def _read_directory(data: bytes) -> None:
    disk = SimDisk()
    disk.replace(_IDENTITY, data)
    read_identity(disk)


def _log_seeds() -> Iterator[tuple[str, bytes]]:
    for number in range(len(_files())):
        for position in (0, 6, 20, HEADER_BYTES + 20):
            edit = _EDIT.pack(number, 1, position) + b"\x00\x07"
            yield f"file-{number}-at-{position}", join([edit])


def _vote_seeds() -> Iterator[tuple[str, bytes]]:
    disk = SimDisk()
    journal = VoteJournal.open(disk, "votes")
    journal.record({"group": (Epoch(3), BrokerId(2))})
    journal.close()
    whole = disk.read("votes")
    yield "file", b"\1" + whole
    (_, _, size, _) = _VOTE_HEAD.unpack_from(whole)
    payload = whole[_VOTE_HEAD.size : _VOTE_HEAD.size + size]
    yield "entries", b"\0" + join([bytes(8) + payload, bytes(7) + b"\1" + payload])


def _directory_seeds() -> Iterator[tuple[str, bytes]]:
    disk = SimDisk()
    identity = Identity(
        broker_id=BrokerId(1), cluster_id="c", directory_id="d", metadata_voters=(BrokerId(1),)
    )
    write_identity(disk, identity)
    yield "identity", disk.read(_IDENTITY)


TARGETS: Final = [
    Target(
        name="disk-log",
        about="the files of a log",
        run=_open_log,
        allowed=(CorruptionError,),
        seeds=_log_seeds,
        bytes_max=512,
    ),
    Target(
        name="disk-votes",
        about="the file of votes",
        run=_open_votes,
        allowed=(CorruptionError,),
        seeds=_vote_seeds,
        bytes_max=1024,
    ),
    Target(
        name="disk-identity",
        about="the identity of a data directory",
        run=_read_directory,
        allowed=(CorruptionError, StorageError),
        seeds=_directory_seeds,
        bytes_max=1024,
    ),
]
