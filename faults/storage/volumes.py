"""The file systems that brokers under test write to, and the faults of each.

All of it is the kernel's own behaviour; no broker knows of it. Needs root:

- CutVolume: ext4 in an image. A power cut is the file system's shutdown request, which drops
  everything that was not flushed at that moment; mounting it again replays its journal.
- FullVolume: a tmpfs of a fixed size, filled by somebody else.
- FailingVolume: ext4 in a sparse image that cannot grow any more: writes are taken into the page
  cache, and fsync says EIO.
"""

import fcntl
import os
import shutil
import struct
import subprocess
import time
from functools import cache
from pathlib import Path
from typing import Final, Self

_COMMAND_SECONDS_MAX = 60.0
_UNMOUNT_TRIES_MAX = 50
_SHUTDOWN: Final = 0x8004587D
"""FS_IOC_SHUTDOWN of Linux."""
_WITHOUT_FLUSH: Final = 2
"""Its flag that leaves even the journal in memory behind."""
_TOOLS = ("mount", "umount", "mkfs.ext4", "truncate")


class VolumeError(Exception):
    """The machine did not do what the fault needs."""


def _run(*command: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_COMMAND_SECONDS_MAX, check=False
    )
    if done.returncode != 0:
        raise VolumeError(f"{' '.join(command)}: {done.stderr.strip()}")


@cache
def cannot_mount(scratch: Path) -> str:
    """Why this machine has no volumes of this kind; empty if it has."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    try:
        with CutVolume(scratch / "probe", megabytes=16) as volume:
            volume.cut_power()
            volume.recover()
    except VolumeError as error:
        return str(error)
    return ""


class Volume:
    """A mounted file system; brokers get directories in `path`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.path = home / "mount"
        self.path.mkdir(parents=True)

    def mount(self) -> None:
        raise VolumeError("this kind of volume cannot be mounted again")

    def unmount(self) -> None:
        _unmount(self.path)

    def close(self) -> None:
        if os.path.ismount(self.path):
            self.unmount()
        shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _unmount(path: Path) -> None:
    """A process that was just killed may hold it for a moment."""
    for attempt in range(_UNMOUNT_TRIES_MAX):
        try:
            _run("umount", str(path))
            return
        except VolumeError:
            if attempt == _UNMOUNT_TRIES_MAX - 1:
                raise
            time.sleep(0.1)


def _make_image(image: Path, megabytes: int) -> None:
    _run("truncate", "-s", f"{megabytes}M", str(image))
    _run("mkfs.ext4", "-q", "-J", "size=4", "-E", "lazy_itable_init=0", str(image))


class CutVolume(Volume):
    """An ext4 file system that can lose power."""

    def __init__(self, home: Path, *, megabytes: int = 1024) -> None:
        super().__init__(home)
        self._image = home / "image"
        _make_image(self._image, megabytes)
        self.mount()

    def mount(self) -> None:
        # The journal is written when somebody flushes, not every five seconds by itself: a broker
        # that forgets a flush is found out however short the run.
        _run("mount", "-o", "loop,commit=600", str(self._image), str(self.path))

    def cut_power(self) -> None:
        """From this moment on nothing reaches the disk, and what was not flushed is gone.

        Stop the processes that write to it before, so that none of them sees it happen.
        """
        (self.path / "flushed").write_bytes(b"flushed")
        descriptor = os.open(self.path / "flushed", os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        root = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(root)
            (self.path / "not-flushed").write_bytes(b"not flushed")
            fcntl.ioctl(root, _SHUTDOWN, struct.pack("I", _WITHOUT_FLUSH))
        finally:
            os.close(root)

    def recover(self) -> str:
        """Power is back; returns the proof that the cut took what was not flushed, and only that.

        Raises VolumeError if it did not.
        """
        self.unmount()
        self.mount()
        kept = self.path / "flushed"
        try:
            is_kept = kept.exists() and kept.read_bytes() == b"flushed"
        except OSError as error:
            # `ip netns exec` copies the mounts of its moment, and holds on to them.
            raise VolumeError(f"another process holds {self.path}: {error}") from error
        if not is_kept:
            raise VolumeError("the file system lost a file that was flushed")
        kept.unlink()
        gone = self.path / "not-flushed"
        if gone.exists() and gone.read_bytes():
            raise VolumeError("the power cut did not take a file that was not flushed")
        gone.unlink(missing_ok=True)
        return "an unflushed file was gone, a flushed one was there"


class FullVolume(Volume):
    """A tmpfs that somebody else fills."""

    def __init__(self, home: Path, *, megabytes: int = 256) -> None:
        super().__init__(home)
        _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(self.path))

    def fill(self, *, leave_bytes: int = 0) -> int:
        """Take all room but a little; returns the bytes that are left."""
        with (self.path / "ballast").open("ab") as file:
            while (room := self.free_bytes - leave_bytes) > 0:
                try:
                    file.write(bytes(min(room, 1 << 20)))
                    file.flush()
                except OSError:
                    break
        return self.free_bytes

    @property
    def free_bytes(self) -> int:
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    @property
    def total_bytes(self) -> int:
        status = os.statvfs(self.path)
        return status.f_blocks * status.f_frsize

    def relieve(self) -> None:
        (self.path / "ballast").unlink(missing_ok=True)


class FailingVolume(Volume):
    """An ext4 file system whose disk starts to refuse writes."""

    def __init__(self, home: Path, *, megabytes: int = 256) -> None:
        super().__init__(home)
        self._backing = home / "backing"
        self._backing.mkdir()
        _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(self._backing))
        try:
            self._image = self._backing / "image"
            _make_image(self._image, 4 * megabytes)
            self.mount()
        except VolumeError:
            _unmount(self._backing)
            raise

    def mount(self) -> None:
        _run("mount", "-o", "loop,commit=600", str(self._image), str(self.path))

    def fail(self) -> None:
        """The disk takes no block that it did not have before: fsync fails from now on."""
        with (self._backing / "ballast").open("ab") as file:
            try:
                while True:
                    file.write(bytes(1 << 20))
                    file.flush()
            except OSError:
                pass

    def repair(self) -> None:
        """The disk works again, with what it held."""
        self.unmount()
        (self._backing / "ballast").unlink()
        self.mount()

    def close(self) -> None:
        if os.path.ismount(self.path):
            self.unmount()
        if os.path.ismount(self._backing):
            _unmount(self._backing)
        super().close()
