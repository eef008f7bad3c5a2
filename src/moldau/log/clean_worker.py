"""Owns the process in which logs are cleaned: `python -m moldau.log.clean_worker DIRECTORY`.

Decompressing and rewriting takes the interpreter for seconds, and in the broker every heartbeat
would wait for it. So the broker starts this process, of low priority, and speaks to it over pipes:
a frame is four bytes of length and a message. It does one thing after another, opens only what it
is told to, and ends when its input ends, also in the middle of its work: the broker may be gone.
"""

import os
import queue
import signal
import struct
import sys
import threading
from typing import BinaryIO

import msgspec

from moldau.log.clean import CleanJob, CleanResult
from moldau.log.clean_run import remove_files, run_clean
from moldau.log.filesystem import Files
from moldau.log.flush import DISK_FULL
from moldau.log.os_filesystem import OsFiles
from moldau.model.errors import CorruptionError

FRAME_BYTES_MAX = 64 * 1024 * 1024
_NICENESS = 10
_LENGTH = struct.Struct(">I")


class CleanCommand(msgspec.Struct, tag=True, frozen=True):
    """Clean a log; answered by CleanDone or WorkFailed."""

    job: CleanJob


class RemoveFilesCommand(msgspec.Struct, tag=True, frozen=True):
    """Remove files; answered by RemovalDone or WorkFailed."""

    paths: list[str]


class CleanDone(msgspec.Struct, tag=True, frozen=True):
    result: CleanResult


class RemovalDone(msgspec.Struct, tag=True, frozen=True):
    pass


class WorkFailed(msgspec.Struct, tag=True, frozen=True):
    """It could not be done; nothing that counts has changed."""

    reason: str
    is_corrupt: bool = False
    """The log itself is damaged: trying again changes nothing."""
    is_full: bool = False
    """There is no room on the disk."""


Asked = CleanCommand | RemoveFilesCommand
WorkerReply = CleanDone | RemovalDone | WorkFailed
_asked: msgspec.msgpack.Decoder[Asked] = msgspec.msgpack.Decoder(Asked)
_answers: msgspec.msgpack.Decoder[WorkerReply] = msgspec.msgpack.Decoder(WorkerReply)


def frame(message: Asked | WorkerReply) -> bytes:
    """A message, ready for the pipe."""
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


def frame_bytes(head: bytes) -> int:
    """Length of the message that follows its first four bytes; ValueError if it cannot be."""
    (size,) = _LENGTH.unpack(head)
    if size > FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {size} bytes")
    return int(size)


HEAD_BYTES = _LENGTH.size


def decode_reply(body: bytes) -> WorkerReply:
    """ValueError if it is none."""
    return _answers.decode(body)


def run_command(files: Files, asked: Asked) -> WorkerReply:
    """Do one thing."""
    try:
        if isinstance(asked, CleanCommand):
            return CleanDone(run_clean(files, asked.job))
        remove_files(files, asked.paths)
        return RemovalDone()
    except CorruptionError as error:
        return WorkFailed(str(error), is_corrupt=True)
    except OSError as error:
        return WorkFailed(str(error), is_full=error.errno in DISK_FULL)


def _read_frames(source: BinaryIO, frames: "queue.SimpleQueue[bytes]") -> None:
    """Runs beside the work. The end of the input ends the process at once: nobody waits for it."""
    while True:
        head = source.read(HEAD_BYTES)
        if len(head) < HEAD_BYTES:
            os._exit(0)
        body = source.read(frame_bytes(head))
        frames.put(body)


def main(directory: str) -> None:
    """Until the input ends."""
    # Ctrl-C in a terminal reaches every process: the broker decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)
    files = OsFiles(directory)
    frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    reader = threading.Thread(target=_read_frames, args=(sys.stdin.buffer, frames), daemon=True)
    reader.start()
    while True:
        answer = run_command(files, _asked.decode(frames.get()))
        sys.stdout.buffer.write(frame(answer))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1])
