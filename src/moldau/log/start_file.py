"""Two small files of a log: `start`, and `epochs` for epochs without a no-op.

`start` contains the log's id, and what must be known about the entries below its start. It is
replaced atomically and alone defines the start; segments below it are leftovers. Its generation
counts resets: files of an older generation are leftovers too.

`epochs` contains the epochs that begin with a batch. An elected leader writes a no-op first, so the
file is empty or missing in practice. But the epoch of a batch is not covered by its checksum, and
with this file epochs below the flush mark are known without reading all headers.
"""

import struct
from typing import NamedTuple

from crc32c import crc32c

from moldau.log.checksummed_file import ADVICE, seal, unseal
from moldau.log.filesystem import Files
from moldau.log.interface import LogStart
from moldau.model.errors import CorruptionError
from moldau.model.ids import FIRST_LOG, NO_EPOCH, Epoch, LogId, Offset

_START_MAGIC = b"MoS2"
_OLD_MAGIC = b"MoSt"
"""Files of versions without log ids: the same format without the id."""
_EPOCHS_MAGIC = b"MoEp"
_START = struct.Struct(">qqqqi")
_NO_ID = struct.pack(">q", FIRST_LOG)
_EPOCH = struct.Struct(">iq")

EMPTY_START = LogStart(Offset(0), 0, NO_EPOCH, b"")


class Head(NamedTuple):
    """The content of the file `start`."""

    log_id: LogId
    generation: int
    start: LogStart


def load_head(files: Files, directory: str) -> Head | None:
    """None if the log has no such file: it is new, or has never needed one. Raises
    CorruptionError."""
    path = f"{directory}/start"
    if not files.exists(path):
        return None
    data = files.read(path)
    if data.startswith(_OLD_MAGIC):
        payload = _NO_ID + unseal(_OLD_MAGIC, data, path)
    else:
        payload = unseal(_START_MAGIC, data, path)
    if len(payload) < _START.size:
        raise CorruptionError(f"{path}: too short ({len(payload)} bytes). {ADVICE}")
    log_id, generation, offset, count, epoch = _START.unpack_from(payload)
    if generation < 0 or offset < 0 or count < 0 or epoch < NO_EPOCH:
        raise CorruptionError(
            f"{path}: generation {generation}, offset {offset}, {count} control entries, epoch "
            f"{epoch} cannot be a start. {ADVICE}"
        )
    start = LogStart(Offset(offset), count, Epoch(epoch), payload[_START.size :])
    return Head(LogId(log_id), generation, start)


def save_head(files: Files, directory: str, head: Head) -> None:
    """Durable when it returns."""
    start = head.start
    payload = _START.pack(
        head.log_id, head.generation, start.offset, start.control_count, start.epoch
    )
    files.replace(f"{directory}/start", seal(_START_MAGIC, payload + start.voters))


class BatchEpochs:
    """Epochs of one log that begin with a batch, and their file."""

    __slots__ = ("_files", "path", "starts")

    def __init__(self, files: Files, directory: str, generation: int) -> None:
        self._files = files
        self.path = f"{directory}/epochs" + (f"-{generation}" if generation else "")
        self.starts: list[tuple[Epoch, Offset]] = []

    @property
    def crc(self) -> int:
        """For the flush mark; 0: the file may be missing."""
        # Computed for every flush, and nearly always empty.
        return crc32c(self._encode()) if self.starts else 0

    def _encode(self) -> bytes:
        return b"".join(_EPOCH.pack(epoch, offset) for epoch, offset in self.starts)

    def load(self) -> bool:
        """Read the file; False if it is missing or corrupt."""
        if not self._files.exists(self.path):
            return False
        try:
            payload = unseal(_EPOCHS_MAGIC, self._files.read(self.path), self.path)
        except CorruptionError:
            return False
        whole = len(payload) - len(payload) % _EPOCH.size
        self.starts = [
            (Epoch(epoch), Offset(offset)) for epoch, offset in _EPOCH.iter_unpack(payload[:whole])
        ]
        return True

    def save(self) -> None:
        """Durable when it returns."""
        self._files.replace(self.path, seal(_EPOCHS_MAGIC, self._encode()))

    def add(self, epoch: Epoch, offset: Offset) -> None:
        """Durable before the batch that begins the epoch is written."""
        self.starts.append((epoch, offset))
        try:
            self.save()
        except OSError:
            self.starts.pop()
            raise

    def truncate(self, end: Offset) -> None:
        """Forget epochs whose first batch is not in the log."""
        kept = [entry for entry in self.starts if entry[1] < end]
        if kept != self.starts:
            self.starts = kept
            self.save()
