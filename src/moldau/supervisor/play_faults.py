"""play.json: the faults that brokers of a cluster are to make now.

The supervisor writes it, and the brokers look at it a few times a second. It exists only while
there are faults: they do not outlive the supervisor.
"""

import os
from pathlib import Path

import msgspec
from msgspec.structs import replace

from moldau.model.play import DELAY_MS_MAX, NO_FAULTS, CutLink, PlayFaults, SlowDisk
from moldau.supervisor.errors import SupervisorError

FILE_NAME = "play.json"


class FaultsWriter:
    """Used by the supervisor. Methods raise SupervisorError if the file cannot be written."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        self.current = NO_FAULTS
        # Left by a killed supervisor.
        self._path.unlink(missing_ok=True)

    def set_link(self, one: int, other: int, *, is_cut: bool) -> None:
        if one == other:
            raise SupervisorError(f"a link is between two brokers, not {one} and {other}")
        link = CutLink(*sorted((one, other)))
        others = {each for each in self.current.links if each != link}
        links = others | {link} if is_cut else others
        self._write(replace(self.current, links=tuple(sorted(links))))

    def set_disk(self, broker: int, delay_ms: int) -> None:
        if not 0 <= delay_ms <= DELAY_MS_MAX:
            raise SupervisorError(f"a delay is 0 to {DELAY_MS_MAX} ms, not {delay_ms}")
        disks = {each for each in self.current.disks if each.broker != broker}
        if delay_ms:
            disks.add(SlowDisk(broker=broker, delay_ms=delay_ms))
        self._write(replace(self.current, disks=tuple(sorted(disks))))

    def forget(self, broker: int) -> None:
        """It has left the cluster."""
        self._write(
            PlayFaults(
                links=tuple(each for each in self.current.links if broker not in (each.a, each.b)),
                disks=tuple(each for each in self.current.disks if each.broker != broker),
            )
        )

    def clear(self) -> None:
        self._write(NO_FAULTS)

    def _write(self, wanted: PlayFaults) -> None:
        if wanted == self.current:
            return
        try:
            if wanted == NO_FAULTS:
                self._path.unlink(missing_ok=True)
            else:
                new = self._path.with_suffix(".json.new")
                new.write_bytes(msgspec.json.encode(wanted) + b"\n")
                os.replace(new, self._path)
        except OSError as error:
            raise SupervisorError(f"cannot write {self._path}: {error.strerror}") from error
        self.current = wanted


class FaultsReader:
    """Used by brokers; reads the file only when it is another one."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        self._seen: tuple[int, int] | None = None
        self._faults = NO_FAULTS

    def faults(self) -> PlayFaults:
        try:
            found = self._path.stat()
        except OSError:
            self._seen, self._faults = None, NO_FAULTS
            return NO_FAULTS
        seen = (found.st_ino, found.st_mtime_ns)
        if seen != self._seen:
            try:
                self._faults = msgspec.json.decode(self._path.read_bytes(), type=PlayFaults)
            except (OSError, msgspec.DecodeError):
                # It is being removed, or not ours: as before.
                return self._faults
            self._seen = seen
        return self._faults
