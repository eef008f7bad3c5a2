"""Snapshot files of a log: state derived from the records below an offset.

A snapshot only saves time: a corrupt one is skipped (and kept for inspection), and one beyond the
end of the log describes truncated records, so it is removed before new records get their offsets.
"""

import re
import struct

from moldau.log.checksummed_file import seal, unseal
from moldau.log.filesystem import Files
from moldau.model.errors import CorruptionError
from moldau.model.ids import Offset

SNAPSHOTS_KEPT = 2
_MAGIC = b"MoSn"
_HEAD = struct.Struct(">q")
_NAME = re.compile(r"^(\d{20})\.snapshot$")


def _listed(files: Files, directory: str) -> list[Offset]:
    """Offsets of the snapshots, oldest first."""
    matches = (_NAME.match(name) for name in files.listdir(directory))
    return sorted(Offset(int(match[1])) for match in matches if match)


def _path(directory: str, offset: Offset) -> str:
    return f"{directory}/{offset:020d}.snapshot"


def write_snapshot(files: Files, directory: str, offset: Offset, payload: bytes) -> None:
    """Durable when it returns; keeps the others."""
    files.replace(_path(directory, offset), seal(_MAGIC, _HEAD.pack(offset) + payload))


def save_snapshot(files: Files, directory: str, offset: Offset, payload: bytes) -> None:
    """Durable when it returns; older ones but the newest two are removed."""
    write_snapshot(files, directory, offset, payload)
    for old in _listed(files, directory)[:-SNAPSHOTS_KEPT]:
        files.remove(_path(directory, old))


def load_snapshot(files: Files, directory: str, end_offset: Offset) -> tuple[Offset, bytes] | None:
    """The newest intact snapshot not beyond `end_offset`."""
    for offset in reversed(_listed(files, directory)):
        if offset > end_offset:
            continue
        path = _path(directory, offset)
        try:
            payload = unseal(_MAGIC, files.read(path), path)
        except CorruptionError:
            continue
        if _HEAD.unpack_from(payload)[0] == offset:
            return offset, payload[_HEAD.size :]
    return None


def drop_snapshots(
    files: Files, directory: str, end_offset: Offset, *, but: Offset | None = None
) -> None:
    """Remove snapshots beyond `end_offset`, all `but` one; durable when it returns."""
    listed = _listed(files, directory)
    beyond = [offset for offset in listed if offset > end_offset and offset != but]
    for offset in beyond:
        files.remove(_path(directory, offset))
    if beyond:
        files.sync_dir(directory)
