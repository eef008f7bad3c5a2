"""An entry point for brokers on a disk with a volatile cache; never part of the product.

    FAULTS_CUT_FLAG=F FAULTS_CUT_PROOF=P python -m faults.storage.volatile broker start …

runs the command line as `moldau` does, and remembers every write, name and removal until the flush
that makes it durable. Once the file F exists the power is cut: the process ends by SIGKILL, and of
what was not flushed a random part is kept, sector by sector and in no order; the rest is undone.
F holds the seed; P tells what was undone, when it has been. If F exists at the start it also holds,
after the seed, the number of changes to let through before the cut: a power cut in the middle of a
start. Unlike a real file system, which mostly drops all that is unflushed, this tears; and it needs
no root.
"""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from moldau.cli.main import main
from moldau.log import kernel_sync

FLAG_VARIABLE: Final = "FAULTS_CUT_FLAG"
PROOF_VARIABLE: Final = "FAULTS_CUT_PROOF"
SECTOR_BYTES: Final = 512
_LOOK_SECONDS: Final = 0.005

_Key = tuple[int, int]
_open, _close, _unlink, _link = os.open, os.close, os.unlink, os.link
_pread, _pwrite, _ftruncate = os.pread, os.pwrite, os.ftruncate
_fsync, _fdatasync = os.fsync, os.fdatasync


class _Change(NamedTuple):
    """One write or cut of a file, and what was there before."""

    position: int
    old: bytes
    new: bytes | None
    """None: the file was cut at `position`."""
    old_size: int


class _File:
    """The changes of one file since its last flush."""

    def __init__(self, descriptor: int) -> None:
        # Kept open, so that it can be put back even if its name is gone.
        self.descriptor = _open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        self.changes: list[_Change] = []
        self.flushed = 0
        """Changes before those in the list."""

    @property
    def count(self) -> int:
        return self.flushed + len(self.changes)

    def forget(self, count: int) -> None:
        """All changes up to that count are durable, perhaps by another thread's flush already."""
        if count > self.flushed:
            del self.changes[: count - self.flushed]
            self.flushed = count


class Cache:
    """The volatile cache of a disk."""

    def __init__(self, graves: Path) -> None:
        self._lock = threading.RLock()
        self._files: dict[_Key, _File] = {}
        self._made: dict[_Key, list[str]] = {}
        """Names by their directory, not flushed with it yet."""
        self._removed: dict[_Key, list[tuple[str, str]]] = {}
        """Names and where what they named is kept."""
        self._graves = graves
        self._buried = 0
        self._changes_left: int | None = None
        self._on_last: Callable[[], None] | None = None

    def install(self) -> None:
        """Stand between the process and the disk."""
        kernel_sync.is_offered = False
        patched: dict[str, Any] = {
            "open": self._on_open,
            "unlink": self._on_unlink,
            "pwrite": self._on_pwrite,
            "pwritev": self._on_pwritev,
            "ftruncate": self._on_ftruncate,
            "fsync": lambda descriptor: self._on_flush(descriptor, _fsync),
            "fdatasync": lambda descriptor: self._on_flush(descriptor, _fdatasync),
        }
        for name, function in patched.items():
            setattr(os, name, function)

    def cut_after(self, changes: int, then: Callable[[], None]) -> None:
        """Call `then`, which cuts, in place of the change after that many."""
        self._changes_left, self._on_last = changes, then

    def _count(self) -> None:
        if self._changes_left is not None and self._on_last is not None:
            if self._changes_left == 0:
                self._on_last()
            self._changes_left -= 1

    def _on_open(self, path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        if not flags & os.O_CREAT or more:
            return _open(path, flags, mode, **more)
        with self._lock:
            self._count()
            is_new = not os.path.exists(path)
            descriptor = _open(path, flags, mode)
            if is_new:
                name = os.path.abspath(os.fsdecode(path))
                self._made.setdefault(_key(os.path.dirname(name)), []).append(name)
            return descriptor

    def _on_unlink(self, path: Any, **more: Any) -> None:
        with self._lock:
            self._count()
            if not more:
                name = os.path.abspath(os.fsdecode(path))
                self._buried += 1
                grave = str(self._graves / str(self._buried))
                _link(name, grave)
                self._removed.setdefault(_key(os.path.dirname(name)), []).append((name, grave))
            _unlink(path, **more)

    def _note(self, descriptor: int, position: int, size: int, new: bytes | None) -> None:
        file = self._files.get(key := _key(descriptor))
        if file is None:
            file = self._files[key] = _File(descriptor)
        old = _pread(file.descriptor, size, position)
        old_size = os.fstat(file.descriptor).st_size
        file.changes.append(_Change(position, old, new, old_size))

    def _on_pwrite(self, descriptor: int, data: Any, position: int) -> int:
        with self._lock:
            self._count()
            new = bytes(data)
            self._note(descriptor, position, len(new), new)
            return _pwrite(descriptor, data, position)

    def _on_pwritev(self, descriptor: int, buffers: Sequence[Any], position: int) -> int:
        return self._on_pwrite(descriptor, b"".join(buffers), position)

    def _on_ftruncate(self, descriptor: int, size: int) -> None:
        with self._lock:
            self._count()
            lost = max(0, os.fstat(descriptor).st_size - size)
            self._note(descriptor, size, lost, None)
            _ftruncate(descriptor, size)

    def _on_flush(self, descriptor: int, flush: Any) -> None:
        with self._lock:
            self._count()
            key = _key(descriptor)
            file = self._files.get(key)
            # What is written while the flush runs is not covered by it.
            covered = file.count if file is not None else 0
            made = list(self._made.get(key, ()))
            removed = list(self._removed.get(key, ()))
        flush(descriptor)
        # Waits forever once the power is cut: no one sees a flush that came too late.
        with self._lock:
            if file is not None:
                file.forget(covered)
                if not file.changes and self._files.get(key) is file:
                    _close(self._files.pop(key).descriptor)
            if made:
                self._made[key] = [name for name in self._made[key] if name not in made]
            for entry in removed:
                if entry in self._removed[key]:
                    self._removed[key].remove(entry)
                    _unlink(entry[1])

    @contextmanager
    def still(self) -> Iterator[None]:
        """Nothing changes meanwhile."""
        with self._lock:
            yield

    def cut(self, rng: random.Random) -> dict[str, int]:
        """Undo a random part of what is not durable. Nothing goes on after it."""
        self._lock.acquire()
        keep = rng.choice([0.0, 0.1, 0.5, 0.9])
        reported = {
            "writes": 0,
            "sectors": 0,
            "sectors_kept": 0,
            "names_undone": 0,
            "names_back": 0,
        }
        for file in self._files.values():
            for change in reversed(file.changes):
                _pwrite(file.descriptor, change.old, change.position)
                _ftruncate(file.descriptor, change.old_size)
            for change in file.changes:
                reported["writes"] += 1
                if change.new is None:
                    if rng.random() < keep:
                        _ftruncate(file.descriptor, change.position)
                    continue
                for at in range(0, len(change.new), SECTOR_BYTES):
                    reported["sectors"] += 1
                    if rng.random() < keep:
                        reported["sectors_kept"] += 1
                        sector = change.new[at : at + SECTOR_BYTES]
                        _pwrite(file.descriptor, sector, change.position + at)
        for name in [name for names in self._made.values() for name in names]:
            if os.path.exists(name) and rng.random() >= keep:
                reported["names_undone"] += 1
                _unlink(name)
        for name, grave in [entry for entries in self._removed.values() for entry in entries]:
            is_gone = os.path.isdir(os.path.dirname(name)) and not os.path.exists(name)
            if is_gone and rng.random() >= keep:
                reported["names_back"] += 1
                _link(grave, name)
        return reported


def _key(where: int | str) -> _Key:
    status = os.stat(where)
    return status.st_dev, status.st_ino


def _cut(cache: Cache, proof: Path, seed: str) -> None:
    """The process ends at once; a copy of it then does to the files what the power cut did.

    While it runs, none of its files may change: its peers and clients would be sent the result.
    """
    with cache.still():
        victim = os.getpid()
        if os.fork() == 0:
            try:
                _close_sockets()
                os.kill(victim, signal.SIGKILL)
                while _runs(victim):
                    time.sleep(0.001)
                reported = cache.cut(random.Random(seed))
                unfinished = proof.with_suffix(".new")
                unfinished.write_text(json.dumps(reported))
                unfinished.rename(proof)
            finally:
                os._exit(0)
        # The signal ends this thread too, in its own time.
        time.sleep(60)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _close_sockets() -> None:
    """They are the victim's: with its end they are gone."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                _close(int(name))
        except OSError:
            continue


def undone(proof: Path, seconds_max: float = 30.0) -> dict[str, int]:
    """What the last power cut undid, once it has; for the harness. The proof is used up."""
    deadline = time.monotonic() + seconds_max
    while not proof.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {proof} of a power cut")
        time.sleep(0.01)
    reported: dict[str, int] = json.loads(proof.read_text())
    proof.unlink()
    return reported


def _watch(cache: Cache, flag: Path, proof: Path) -> None:
    while not flag.exists():
        time.sleep(_LOOK_SECONDS)
    _cut(cache, proof, flag.read_text())


def run() -> NoReturn:
    flag, proof = Path(os.environ[FLAG_VARIABLE]), Path(os.environ[PROOF_VARIABLE])
    graves = proof.parent / "graves"
    graves.mkdir(exist_ok=True)
    for left in graves.iterdir():
        left.unlink()
    cache = Cache(graves)
    cache.install()
    if flag.exists():
        # Without a number the cut was meant for a process that had only begun to start.
        seed, *changes = flag.read_text().split()
        cache.cut_after(int((changes or ["0"])[0]), lambda: _cut(cache, proof, seed))
    else:
        threading.Thread(target=_watch, args=(cache, flag, proof), daemon=True).start()
    main()


if __name__ == "__main__":
    run()
