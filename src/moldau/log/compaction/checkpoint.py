"""The checkpoint file `cleaned`: the segments after the last compaction, and how far it came.

Replacing it atomically makes new segments part of the log: a crash before it leaves the old ones,
a crash after it the new ones. Segment files that it does not list are leftovers.
"""

import msgspec

from moldau.log.checksummed_file import ADVICE, seal, unseal
from moldau.log.compaction.job import CompactionState
from moldau.log.filesystem import Files
from moldau.model.errors import CorruptionError
from moldau.model.malformed import MALFORMED

_MAGIC = b"MoCl"


class CompactionCheckpoint:
    """The file of one log and one generation. `state` is its content."""

    __slots__ = ("_files", "path", "state")

    def __init__(self, files: Files, directory: str, generation: int) -> None:
        self._files = files
        self.path = f"{directory}/cleaned" + (f"-{generation}" if generation else "")
        self.state = CompactionState()

    def load(self) -> None:
        """Raises CorruptionError: without the file it is unknown which segments are the log."""
        if not self._files.exists(self.path):
            return
        payload = unseal(_MAGIC, self._files.read(self.path), self.path)
        try:
            self.state = msgspec.msgpack.decode(payload, type=CompactionState)
        except MALFORMED as error:
            raise CorruptionError(f"{self.path}: {error}. {ADVICE}") from None

    def save(self, state: CompactionState) -> None:
        """Durable when it returns."""
        if state != self.state:
            self._files.replace(self.path, seal(_MAGIC, msgspec.msgpack.encode(state)))
            self.state = state
