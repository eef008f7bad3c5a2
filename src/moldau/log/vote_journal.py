"""The vote journal: the durable epoch and vote of every Raft group of a broker, in one file.

A lost vote can elect two leaders, so a vote is on the disk before its epoch is used. Groups share
the file, and one flush covers all votes recorded together: a start with 1,000 partitions needs one
flush, not 1,000.

The file is a sequence of entries, each numbered, checksummed and written twice in a row. Entries
are flushed one after another, so a crash can tear only the last; if both copies are torn it was
never acknowledged. A flipped bit damages one copy, and the other is used. A missing number in the
middle is corruption: the broker must not guess its vote.
"""

import struct
from collections.abc import Mapping
from typing import Final

import msgspec
from crc32c import crc32c

from moldau.log.filesystem import File, Files, write_all
from moldau.log.flush import DISK_FULL
from moldau.model.errors import CorruptionError, DiskFullError, StorageError
from moldau.model.ids import NO_EPOCH, BrokerId, Epoch
from moldau.model.malformed import MALFORMED

NO_VOTE: Final = BrokerId(-1)
Vote = tuple[Epoch, BrokerId]

_MAGIC: Final = b"MoVt"
_HEAD: Final = struct.Struct(">4sQII")
"""Magic, number, size of the payload, CRC32C of number, size and payload."""
_NUMBER_MAX: Final = 2**63
"""Nobody votes that often: a larger number is not one of ours."""
_REWRITE_BYTES_MIN = 256 * 1024
_ADVICE: Final = (
    "Restore the file from a backup, or let the broker join again with an empty data directory."
)
_decoder: Final = msgspec.msgpack.Decoder(dict[str, tuple[int, int]])


_FORGOTTEN: Final = (NO_EPOCH, NO_VOTE)
"""The entry of a deleted group: the same as for an unknown one."""


def _encode(number: int, votes: Mapping[str, Vote]) -> bytes:
    payload = msgspec.msgpack.encode(votes)
    crc = crc32c(struct.pack(">QI", number, len(payload)) + payload)
    entry = _HEAD.pack(_MAGIC, number, len(payload), crc) + payload
    return entry + entry


def _entries(data: bytes) -> dict[int, dict[str, tuple[int, int]]]:
    """Every intact entry by its number, at any position in the file."""
    found: dict[int, dict[str, tuple[int, int]]] = {}
    position = data.find(_MAGIC)
    while position >= 0:
        end = position + 1
        if position + _HEAD.size <= len(data):
            _, number, size, crc = _HEAD.unpack_from(data, position)
            payload_at = position + _HEAD.size
            payload = data[payload_at : payload_at + size]
            if len(payload) == size and crc32c(struct.pack(">QI", number, size) + payload) == crc:
                found[number] = _decoder.decode(payload)
                end = payload_at + size
        position = data.find(_MAGIC, end)
    return found


class VoteJournal:
    """The votes of this broker. Not thread-safe."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._votes: dict[str, Vote] = {}
        self._number = 0
        self._position = 0
        self._rewrite_at = _REWRITE_BYTES_MIN
        self._file: File | None = None
        self._has_failed = False

    @classmethod
    def open(cls, files: Files, path: str) -> "VoteJournal":
        """Read the journal, or create it. Raises CorruptionError if votes are missing."""
        journal = cls(files, path)
        if not files.exists(path):
            files.replace(path, _encode(0, {}))
        data = files.read(path)
        try:
            entries = _entries(data)
        except MALFORMED as error:
            raise CorruptionError(f"{path}: an entry is corrupt ({error}). {_ADVICE}") from None
        if not entries:
            raise CorruptionError(f"{path}: no intact entry, the votes are lost. {_ADVICE}")
        first, last = min(entries), max(entries)
        if len(entries) != last - first + 1 or last > _NUMBER_MAX:
            # Numbers come from the file: they may be far apart.
            missing = next(number for number in sorted(entries) if number + 1 not in entries) + 1
            raise CorruptionError(f"{path}: entry {missing} of {last} is corrupt. {_ADVICE}")
        for number in range(first, last + 1):
            for group, (epoch, voted_for) in entries[number].items():
                journal._votes[group] = (Epoch(epoch), BrokerId(voted_for))
                if journal._votes[group] == _FORGOTTEN:
                    del journal._votes[group]
        journal._number = last
        # Removes torn bytes after the last entry, and restores the second copy of each.
        journal._rewrite()
        return journal

    def get(self, group: str) -> Vote:
        """The last epoch in which this broker voted, and the broker that it voted for."""
        return self._votes.get(group, _FORGOTTEN)

    def record(self, votes: Mapping[str, Vote]) -> None:
        """Durable when it returns. Raises StorageError.

        A full disk (DiskFullError) changes nothing, the number included: the next entry overwrites
        the torn one, and a missing number would look like a lost vote.
        """
        if not votes:
            return
        if self._has_failed:
            # Its number is used, and the content of the file there is unknown.
            raise StorageError(f"{self._path}: storing an earlier vote failed")
        before = {group: self._votes.get(group) for group in votes}
        self._number += 1
        self._votes.update(votes)
        try:
            self._store(_encode(self._number, votes))
        except DiskFullError:
            self._number -= 1
            for group, vote in before.items():
                if vote is None:
                    del self._votes[group]
                else:
                    self._votes[group] = vote
            raise

    def _store(self, data: bytes) -> None:
        """Write the last entry, or all votes if the file has grown too large."""
        is_written = False
        try:
            if self._position + len(data) > self._rewrite_at:
                self._rewrite()
                return
            file = self._file
            if file is None:
                file = self._file = self._files.open(self._path)
            write_all(file, data, self._position)
            is_written = True
            file.flush()
        except OSError as error:
            is_full = error.errno in DISK_FULL and not is_written
            self._has_failed = not is_full
            kind = DiskFullError if is_full else StorageError
            raise kind(f"{self._path}: cannot store the vote: {error}") from error
        self._position += len(data)

    def forget(self, groups: frozenset[str]) -> None:
        """Durably remove deleted groups. The next rewrite frees their space. Raises StorageError,
        like `record`."""
        known = {group: _FORGOTTEN for group in groups if group in self._votes}
        self.record(known)
        for group in known:
            del self._votes[group]

    def _rewrite(self) -> None:
        """Replace the file by one entry with every vote."""
        data = _encode(self._number, self._votes)
        self.close()
        self._files.replace(self._path, data)
        self._position = len(data)
        self._rewrite_at = max(_REWRITE_BYTES_MIN, 4 * len(data))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
