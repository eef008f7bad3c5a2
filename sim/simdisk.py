"""A simulated disk: the interface `Files` in memory, with power failures.

It guarantees what POSIX guarantees, and no more:

- Bytes written are volatile until flush() of that file; a truncation too.
- Names (created, removed) are volatile until sync_dir of their directory. makedirs, rename and
  replace are durable when they return, as `Files` demands; internally they are several steps.
- crash(rng) draws the fate of everything volatile. A write may survive whole, in part (truncated at
  any byte, or sector by sector), as a longer file of zeros, or not at all; a later one may survive
  where an earlier one is lost. The probabilities are drawn per crash: some seeds lose everything,
  some nothing, some tear every write.

A crash can be placed before any operation that changes something: `crash_at(n)`, or a hook in
`on_step` that raises SimCrash. From then on the disk is off: further writes, for example in
`finally` blocks, raise SimCrash again.

Everything is synchronous. flush() covers what was written before it was called; to simulate a slow
flush, call it later within `as_begun` of an earlier step: what was written since is not covered.
Nothing here depends on time, identity or the order of a set: the same calls with the same seed give
the same disk.
"""

import errno
import os
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn, Protocol, cast

from moldau.log.filesystem import Buffer
from moldau.log.os_filesystem import REPLACEMENT_SUFFIX
from moldau.model.slices import HasDescriptor
from sim.torn_writes import (
    ByteOp,
    CrashRates,
    Truncation,
    Write,
    apply_byte_op,
    surviving_bytes,
    surviving_ops,
)

CAPACITY_BYTES = 1 << 40
_COLD_LOOKS = 5
"""Every so many reads that ask have to wait for the disk."""


class SimCrash(BaseException):
    """The power failed. A BaseException, so that no handler in the product catches it."""


@dataclass(slots=True, eq=False)
class _FileNode:
    """The bytes of one file, independent of its name."""

    number: int
    live: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[ByteOp] = field(default_factory=list)
    """Changes of `live` since the last flush, in order."""
    steps: list[int] = field(default_factory=list)
    """The step number of each of those changes."""
    allocated: int = 0
    """Bytes that use space; the rest, up to the size, is a hole."""


@dataclass(slots=True, eq=False)
class _DirectoryNode:
    number: int
    live: "dict[str, _Node]" = field(default_factory=dict)
    durable: "dict[str, _Node]" = field(default_factory=dict)


_Node = _FileNode | _DirectoryNode


class _NameEdit(NamedTuple):
    """One name in one directory is set to a node; None: it is removed."""

    directory: _DirectoryNode
    name: str
    node: _Node | None


_NameOp = tuple[_NameEdit, ...]
"""Edits that happen together or not at all: a rename is two."""


class _Sender(Protocol):
    """A simulated socket: it gets the bytes, since no kernel reads the file."""

    def send(self, data: bytes) -> int: ...


class SimFile:
    """An open file. Stays readable when its name is removed."""

    def __init__(self, disk: "SimDisk", node: _FileNode, path: str, writable: bool) -> None:
        self._disk = disk
        self._node = node
        self._path = path
        self._writable = writable
        self._closed = False

    def pwrite(self, data: Buffer | Sequence[Buffer], position: int) -> int:
        self._check_writable()
        if isinstance(data, (bytes, bytearray, memoryview)):
            return self._disk._write(self._node, self._path, bytes(data), position)
        return self._disk._write(self._node, self._path, b"".join(data), position)

    def send_to(self, sock: HasDescriptor, size: int, position: int) -> int:
        return cast(_Sender, sock).send(self.pread(size, position))

    def is_cached(self, size: int, position: int) -> bool:
        self._disk.looks += 1
        return bool(self._disk.looks % _COLD_LOOKS)

    def pread(self, size: int, position: int) -> bytes:
        self._check_open()
        if size < 0 or position < 0:
            _fail(errno.EINVAL, self._path)
        return bytes(self._node.live[position : position + size])

    def flush(self) -> None:
        self._check_open()
        self._disk._flush(self._node, self._path)

    def truncate(self, size: int) -> None:
        self._check_writable()
        self._disk._truncate(self._node, self._path, size)

    def size(self) -> int:
        self._check_open()
        return len(self._node.live)

    def close(self) -> None:
        # Also works after a crash: `finally` blocks call it.
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the file is closed")
        self._disk._check_power()

    def _check_writable(self) -> None:
        self._check_open()
        if not self._writable:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)


class SimDisk:
    """A directory tree with a volatile and a durable state. `steps` counts the changes made."""

    def __init__(self, *, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self.capacity_bytes = capacity_bytes
        self.on_step: Callable[[str], None] | None = None
        self.on_flush: Callable[[], None] | None = None
        """Called by each flush, to simulate its duration."""
        self.steps = 0
        self.looks = 0
        """Reads that asked whether they would wait."""
        self._crash_step: int | None = None
        self._is_off = False
        self._missed = (0, 0)
        self._used_bytes = 0
        self._flush_faults: list[str | None] = []
        self.flush_failures = 0
        """Flushes that failed by `fail_next_flush`."""
        self._nodes_made = 0
        self._name_ops: list[_NameOp] = []
        self._root = _DirectoryNode(self._next_number())

    # The interface `Files`.

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> SimFile:
        self._check_power()
        directory, name = self._parent(path)
        node = directory.live.get(name)
        if node is None:
            if not create:
                _fail(errno.ENOENT, path)
            self._step(f"create {path}")
            node = _FileNode(self._next_number())
            self._edit_names((_NameEdit(directory, name, node),))
        if isinstance(node, _DirectoryNode):
            _fail(errno.EISDIR, path)
        return SimFile(self, node, path, writable)

    def read(self, path: str) -> bytes:
        self._check_power()
        return bytes(self._file(path).live)

    def replace(self, path: str, data: bytes, *, is_private: bool = False) -> None:
        temporary = path + REPLACEMENT_SUFFIX
        file = self.open(temporary, create=True)
        try:
            if file.size():
                file.truncate(0)
            position = 0
            while position < len(data):
                position += file.pwrite(data[position:], position)
            file.flush()
        except OSError:
            self.remove(temporary)
            raise
        self.rename(temporary, path)

    def listdir(self, path: str) -> list[str]:
        self._check_power()
        node = self._find(path)
        if node is None:
            return []
        if isinstance(node, _FileNode):
            _fail(errno.ENOTDIR, path)
        return sorted(node.live)

    def exists(self, path: str) -> bool:
        self._check_power()
        return self._find(path) is not None

    def makedirs(self, path: str) -> None:
        self._check_power()
        parts = _parts(path)
        directory = self._root
        for depth, name in enumerate(parts, 1):
            node = directory.live.get(name)
            if node is None:
                self._step(f"mkdir {'/'.join(parts[:depth])}")
                node = _DirectoryNode(self._next_number())
                self._edit_names((_NameEdit(directory, name, node),))
            if isinstance(node, _FileNode):
                _fail(errno.ENOTDIR, path)
            if directory.durable.get(name) is not node:
                self._sync_directories((directory,), "/".join(parts[: depth - 1]))
            directory = node

    def rename(self, source: str, target: str) -> None:
        self._check_power()
        source_directory, source_name = self._parent(source)
        target_directory, target_name = self._parent(target)
        node = source_directory.live.get(source_name)
        if node is None:
            _fail(errno.ENOENT, source)
        replaced = target_directory.live.get(target_name)
        if isinstance(replaced, _DirectoryNode) and (
            replaced.live or not isinstance(node, _DirectoryNode)
        ):
            _fail(errno.ENOTEMPTY, target)
        self._step(f"rename {source} {target}")
        if replaced is not node:
            self._release(replaced)
            self._edit_names(
                (
                    _NameEdit(source_directory, source_name, None),
                    _NameEdit(target_directory, target_name, node),
                )
            )
        self._sync_directories((source_directory, target_directory), target)

    def remove(self, path: str) -> None:
        self._check_power()
        directory, name = self._parent(path)
        node = directory.live.get(name)
        if node is None:
            _fail(errno.ENOENT, path)
        if isinstance(node, _DirectoryNode):
            _fail(errno.EISDIR, path)
        self._unlink(directory, name, node, path)

    def remove_tree(self, path: str) -> None:
        self._check_power()
        if not _parts(path):
            _fail(errno.EPERM, path)
        node = self._find(path)
        if node is None:
            return
        directory, name = self._parent(path)
        if isinstance(node, _DirectoryNode):
            for child in sorted(node.live):
                self.remove_tree(f"{path}/{child}")
        self._unlink(directory, name, node, path)

    def remove_dir(self, path: str) -> None:
        node = self._find(path)
        if isinstance(node, _DirectoryNode) and not node.live:
            self.remove_tree(path)

    def sync_dir(self, path: str) -> None:
        self._check_power()
        node = self._find(path)
        if node is None:
            _fail(errno.ENOENT, path)
        if isinstance(node, _FileNode):
            _fail(errno.ENOTDIR, path)
        self._sync_directories((node,), path)

    def free_bytes(self) -> int:
        self._check_power()
        return max(0, self.capacity_bytes - self._used_bytes)

    def total_bytes(self) -> int:
        self._check_power()
        return self.capacity_bytes

    @contextmanager
    def as_begun(self, step: int) -> Iterator[None]:
        """Flushes inside this context began at that step, and end now."""
        self._missed = (step, self.steps)
        try:
            yield
        finally:
            self._missed = (0, 0)

    # Faults.

    def crash_at(self, steps: int) -> None:
        """Allow that many more changes, and crash before the next one."""
        self._crash_step = self.steps + steps

    def crash(self, rng: random.Random) -> "SimDisk":
        """Crash now; returns the disk after the restart. This one stays off.

        Called again, it draws another outcome of the same crash.
        """
        self._is_off = True
        rates = CrashRates.draw(rng)
        names: dict[int, dict[str, _Node]] = {}
        for op in surviving_ops(self._name_ops, rates, rng):
            for edit in op:
                known = names.setdefault(edit.directory.number, dict(edit.directory.durable))
                _apply_name(known, edit)
        return self._copy(
            lambda directory: names.get(directory.number, directory.durable),
            lambda file: surviving_bytes(file.durable, file.pending, rates, rng),
        )

    def durable_copy(self) -> "SimDisk":
        return self._copy(lambda directory: directory.durable, lambda file: bytearray(file.durable))

    def _copy(
        self,
        entries_of: Callable[[_DirectoryNode], dict[str, _Node]],
        content_of: Callable[[_FileNode], bytearray],
    ) -> "SimDisk":
        found = SimDisk(capacity_bytes=self.capacity_bytes)

        def copy_tree(source: _DirectoryNode, target: _DirectoryNode) -> None:
            # In the order of names, to be deterministic.
            for name, node in sorted(entries_of(source).items()):
                copy: _Node
                if isinstance(node, _DirectoryNode):
                    copy = _DirectoryNode(found._next_number())
                    copy_tree(node, copy)
                else:
                    copy = found._found_file(content_of(node))
                target.live[name] = target.durable[name] = copy

        copy_tree(self._root, found._root)
        return found

    def lose(self) -> "SimDisk":
        """Crash with the worst outcome; returns the disk after the restart."""
        self._is_off = True
        return self.durable_copy()

    def survive(self) -> "SimDisk":
        """The process ended, but not the system: returns the same disk for the next process.

        Operations of the old process fail from now on.
        """
        found = SimDisk(capacity_bytes=self.capacity_bytes)
        found.steps = self.steps
        found._root, found._name_ops = self._root, self._name_ops
        found._used_bytes, found._nodes_made = self._used_bytes, self._nodes_made
        found._flush_faults = self._flush_faults
        self._is_off = True
        return found

    def fail_next_flush(self, path: str | None = None) -> None:
        """Fail the next flush (of that file) with EIO.

        Its data never reaches the disk, not even by a later flush, though reads still show it: the
        kernel has marked those pages clean.
        """
        self._flush_faults.append(path)

    def forget_faults(self) -> None:
        """Drop faults that were set and have not happened yet."""
        self._flush_faults.clear()
        self._crash_step = None

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def flip_bit(self, path: str, byte: int, bit: int) -> None:
        """Bit rot: the byte changes in memory and on the disk."""
        node = self._file(path)
        mask = 1 << bit
        node.live[byte] ^= mask
        if byte < len(node.durable):
            node.durable[byte] ^= mask
        for index, op in enumerate(node.pending):
            if isinstance(op, Write) and op.position <= byte < op.position + len(op.data):
                data = bytearray(op.data)
                data[byte - op.position] ^= mask
                node.pending[index] = Write(op.position, bytes(data))

    def durable_bytes(self, path: str) -> bytes | None:
        """The durable content of a file; None if its name is not durable."""
        node: _Node = self._root
        for part in _parts(path):
            if isinstance(node, _FileNode) or part not in node.durable:
                return None
            node = node.durable[part]
        return bytes(node.durable) if isinstance(node, _FileNode) else None

    def checksum(self) -> int:
        """Of all names and files, with what is durable of each."""

        def add(path: str, node: _Node, total: int) -> int:
            if isinstance(node, _FileNode):
                return zlib.crc32(node.durable, zlib.crc32(node.live, total))
            for name, each in sorted(node.live.items()):
                place = f"{path}/{name}{' durable' if name in node.durable else ''}"
                total = add(place, each, zlib.crc32(place.encode(), total))
            return total

        return add("", self._root, 0)

    def is_durable(self, path: str, start: int, end: int) -> bool:
        durable = self.durable_bytes(path)
        return durable is not None and durable[start:end] == self._file(path).live[start:end]

    # Internals.

    def _write(self, node: _FileNode, path: str, data: bytes, position: int) -> int:
        self._step(f"write {path} {position}+{len(data)}")
        if not data:
            return 0
        missing = max(0, position + len(data) - node.allocated) - self.free_bytes()
        if missing > 0:
            # As a real disk: write what fits; only the next write fails.
            if missing >= len(data):
                _fail(errno.ENOSPC, path)
            data = data[: len(data) - missing]
        end = position + len(data)
        self._used_bytes += max(0, end - node.allocated)
        node.allocated = max(node.allocated, end)
        self._change(node, Write(position, data))
        return len(data)

    def _truncate(self, node: _FileNode, path: str, size: int) -> None:
        self._step(f"truncate {path} {size}")
        self._change(node, Truncation(size))
        self._used_bytes -= max(0, node.allocated - size)
        node.allocated = min(node.allocated, size)

    def _flush(self, node: _FileNode, path: str) -> None:
        self._step(f"flush {path}")
        if self.on_flush is not None:
            self.on_flush()
        begun, ends = self._missed
        covered = next(
            (place for place, step in enumerate(node.steps) if begun < step <= ends),
            len(node.steps),
        )
        pending, node.pending = node.pending[:covered], node.pending[covered:]
        del node.steps[:covered]
        for index, fault_path in enumerate(self._flush_faults):
            if fault_path in (None, path):
                del self._flush_faults[index]
                self.flush_failures += 1
                _fail(errno.EIO, path)
        for op in pending:
            apply_byte_op(node.durable, op)

    def _change(self, node: _FileNode, op: ByteOp) -> None:
        apply_byte_op(node.live, op)
        node.pending.append(op)
        node.steps.append(self.steps)

    def _unlink(self, directory: _DirectoryNode, name: str, node: _Node, path: str) -> None:
        self._step(f"remove {path}")
        self._release(node)
        self._edit_names((_NameEdit(directory, name, None),))

    def _edit_names(self, op: _NameOp) -> None:
        for edit in op:
            _apply_name(edit.directory.live, edit)
        self._name_ops.append(op)

    def _sync_directories(self, directories: Sequence[_DirectoryNode], path: str) -> None:
        """Make every pending name edit durable that involves one of the directories."""
        self._step(f"sync_dir {path}")
        left = []
        for op in self._name_ops:
            if any(edit.directory is directory for edit in op for directory in directories):
                for edit in op:
                    _apply_name(edit.directory.durable, edit)
            else:
                left.append(op)
        self._name_ops = left

    def _release(self, node: _Node | None) -> None:
        if isinstance(node, _FileNode):
            self._used_bytes -= node.allocated

    def _found_file(self, content: bytearray) -> _FileNode:
        """A file that exists after the restart."""
        self._used_bytes += len(content)
        return _FileNode(
            self._next_number(),
            live=content,
            durable=bytearray(content),
            allocated=len(content),
        )

    def _step(self, label: str) -> None:
        """Called before every change: the point at which a crash may happen."""
        self._check_power()
        try:
            if self._crash_step is not None and self.steps >= self._crash_step:
                raise SimCrash(f"before step {self.steps}: {label}")
            if self.on_step is not None:
                self.on_step(label)
        except SimCrash:
            self._is_off = True
            raise
        self.steps += 1

    def _check_power(self) -> None:
        if self._is_off:
            raise SimCrash("the machine is off")

    def _next_number(self) -> int:
        self._nodes_made += 1
        return self._nodes_made

    def _find(self, path: str) -> _Node | None:
        node: _Node = self._root
        for part in _parts(path):
            if isinstance(node, _FileNode) or part not in node.live:
                return None
            node = node.live[part]
        return node

    def _file(self, path: str) -> _FileNode:
        node = self._find(path)
        if node is None:
            _fail(errno.ENOENT, path)
        if isinstance(node, _DirectoryNode):
            _fail(errno.EISDIR, path)
        return node

    def _parent(self, path: str) -> tuple[_DirectoryNode, str]:
        *parts, name = _parts(path) or [""]
        if not name:
            _fail(errno.EISDIR, path)
        node = self._find("/".join(parts))
        if node is None:
            _fail(errno.ENOENT, path)
        if isinstance(node, _FileNode):
            _fail(errno.ENOTDIR, path)
        return node, name


def _apply_name(names: dict[str, _Node], edit: _NameEdit) -> None:
    if edit.node is None:
        names.pop(edit.name, None)
    else:
        names[edit.name] = edit.node


def _parts(path: str) -> list[str]:
    """The path's components; rejects the same paths as the real implementation."""
    parts = path.split("/")
    if path.startswith("/") or "\0" in path or ".." in parts:
        _fail(errno.EPERM, path)
    return [part for part in parts if part not in ("", ".")]


def _fail(code: int, path: str) -> NoReturn:
    raise OSError(code, os.strerror(code), path)
