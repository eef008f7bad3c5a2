"""The process that compacts logs: `python -m moldau.log.compaction.worker DIRECTORY`.

Decompression and rewriting occupy the interpreter for seconds, and would delay every heartbeat of
the broker. So the broker starts this process with low priority and talks to it over pipes: a frame
is four bytes of length and a message. The worker runs one command after another and exits as soon
as its input ends, even during a command: the broker has exited.
"""

import os
import queue
import signal
import struct
import sys
import threading
from typing import BinaryIO

import msgspec

from moldau.log.compaction.job import CompactionJob, CompactionResult
from moldau.log.compaction.run import remove_files, run_compaction
from moldau.log.filesystem import Files
from moldau.log.os_filesystem import OsFiles
from moldau.model.errors import CorruptionError

FRAME_BYTES_MAX = 64 * 1024 * 1024
_NICENESS = 10
_LENGTH = struct.Struct(">I")


class CompactCommand(msgspec.Struct, tag="CleanAsked", frozen=True):
    """Compact a log; the reply is CompactionDone or WorkFailed."""

    job: CompactionJob


class RemoveFilesCommand(msgspec.Struct, tag="RemovalAsked", frozen=True):
    """Remove files; the reply is RemovalDone or WorkFailed."""

    paths: list[str]


class CompactionDone(msgspec.Struct, tag="CleanDone", frozen=True):
    result: CompactionResult


class RemovalDone(msgspec.Struct, tag=True, frozen=True):
    pass


class WorkFailed(msgspec.Struct, tag=True, frozen=True):
    """The command failed; the log is unchanged."""

    reason: str


WorkerCommand = CompactCommand | RemoveFilesCommand
WorkerReply = CompactionDone | RemovalDone | WorkFailed
_commands: msgspec.msgpack.Decoder[WorkerCommand] = msgspec.msgpack.Decoder(WorkerCommand)
_replies: msgspec.msgpack.Decoder[WorkerReply] = msgspec.msgpack.Decoder(WorkerReply)


def frame(message: WorkerCommand | WorkerReply) -> bytes:
    """A message, ready for the pipe."""
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


def frame_bytes(head: bytes) -> int:
    """Length of the message after these four bytes; ValueError if it is too large."""
    (size,) = _LENGTH.unpack(head)
    if size > FRAME_BYTES_MAX:
        raise ValueError(f"frame of {size} bytes; the limit is {FRAME_BYTES_MAX}")
    return int(size)


HEAD_BYTES = _LENGTH.size


def decode_reply(body: bytes) -> WorkerReply:
    """Raises ValueError if it is malformed."""
    return _replies.decode(body)


def run_command(files: Files, command: WorkerCommand) -> WorkerReply:
    try:
        if isinstance(command, CompactCommand):
            return CompactionDone(run_compaction(files, command.job))
        remove_files(files, command.paths)
        return RemovalDone()
    except (CorruptionError, OSError) as error:
        return WorkFailed(str(error))


def _read_frames(source: BinaryIO, frames: "queue.SimpleQueue[bytes]") -> None:
    """Runs in a thread of its own, so that the end of the input ends the process at once."""
    while True:
        head = source.read(HEAD_BYTES)
        if len(head) < HEAD_BYTES:
            os._exit(0)
        body = source.read(frame_bytes(head))
        frames.put(body)


def main(directory: str) -> None:
    """Runs until the input ends."""
    # Ctrl-C in a terminal reaches every process: the broker decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)
    files = OsFiles(directory)
    frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    reader = threading.Thread(target=_read_frames, args=(sys.stdin.buffer, frames), daemon=True)
    reader.start()
    while True:
        reply = run_command(files, _commands.decode(frames.get()))
        sys.stdout.buffer.write(frame(reply))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1])
