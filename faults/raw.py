"""A reader that speaks the protocol itself, and looks at every reply of every broker.

    python -m faults.raw --bootstrap A,B,C --topic T --partitions 4 --name w1 --history F

A client library hides what it gets: it skips, drops and asks again. This one asks brokers in no
order for each partition, from its start on, and holds each reply against what it knows: batches
follow each other without a gap, none reaches over the high watermark of its reply, and all
brokers have the same bytes at an offset. It imports nothing of the broker. Runs until SIGTERM, then
puts on record ("x-raw") what it did and what was wrong.
"""

import argparse
import random
import socket
import struct
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from faults.clients import History, Stop
from faults.login import secure

_FETCH: Final = 1
_VERSION: Final = 4
_OFFSET_OUT_OF_RANGE: Final = 1
_BYTES_MAX: Final = 1 << 20
_CONNECT_SECONDS_MAX: Final = 1.0
_ANSWER_SECONDS_MAX: Final = 3.0
_BATCH_BYTES_MIN: Final = 61
_CRC_FROM: Final = 17
"""What lies before, the epoch of the leader and the checksum, is compared as well, by itself."""
_PROBLEMS_MAX: Final = 20


class Batch(NamedTuple):
    """One batch of a reply."""

    first: int
    end: int
    epoch: int
    digest: int


class Reply(NamedTuple):
    """What a broker said of one partition."""

    error: int
    high_watermark: int
    records: bytes


def parse_batches(data: bytes) -> Iterator[Batch]:
    """The whole batches of a reply; the last may be cut short."""
    position = 0
    while position + _BATCH_BYTES_MIN <= len(data):
        first, length, epoch = struct.unpack_from(">qii", data, position)
        end = position + 12 + length
        if length <= 0 or end > len(data):
            return
        (last_delta,) = struct.unpack_from(">i", data, position + 23)
        digest = zlib.crc32(data[position + _CRC_FROM : end])
        yield Batch(first, first + last_delta + 1, epoch, digest)
        position = end


class Connection:
    """To one broker."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        opened = socket.create_connection((host, int(port)), _CONNECT_SECONDS_MAX)
        opened.settimeout(_ANSWER_SECONDS_MAX)
        self._socket = secure(opened, host)

    def fetch(
        self, topic: str, partition: int, offset: int, *, stable: bool, wait_ms: int
    ) -> Reply:
        """Raises OSError if there is no answer."""
        name = struct.pack(">h", len(topic)) + topic.encode()
        body = struct.pack(">hhih3s", _FETCH, _VERSION, 1, 3, b"raw")
        body += struct.pack(">iiiibi", -1, wait_ms, 1, _BYTES_MAX, int(stable), 1)
        body += name + struct.pack(">iiqi", 1, partition, offset, _BYTES_MAX)
        self._socket.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", self._receive(4))
        data = self._receive(size)
        # Correlation, throttle, one topic with its name, one partition with its number.
        position = 4 + 4 + 4 + len(name) + 4 + 4
        error, watermark, _, aborted = struct.unpack_from(">hqqi", data, position)
        position += 22 + 16 * max(0, aborted)
        (length,) = struct.unpack_from(">i", data, position)
        return Reply(error, watermark, data[position + 4 : position + 4 + max(0, length)])

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise ConnectionError("closed")
            data += more
        return data

    def close(self) -> None:
        self._socket.close()


class Watch:
    """What is known of one partition, and what was wrong with it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._known: dict[int, Batch] = {}
        self.position = 0
        self.fetches = 0
        self.behind = 0
        """Replies of brokers that had nothing there yet: deposed leaders that do not know it."""
        self.problems: list[str] = []

    def look(self, broker: str, reply: Reply) -> None:
        """Hold a reply to a fetch from `position` against what is known, and move on."""
        self.fetches += 1
        # Without the leader's epoch in the request, one that was deposed may say so in good faith.
        self.behind += reply.error == _OFFSET_OUT_OF_RANGE
        if reply.error:
            return
        is_first = True
        for batch in parse_batches(reply.records):
            follows = batch.first <= self.position < batch.end
            if not (follows if is_first else batch.first == self.position):
                self._problem(f"{broker} gave {batch[:3]} where {self.position} was next")
            if batch.end > reply.high_watermark:
                self._problem(f"{broker} gave {batch[:3]} and a watermark {reply.high_watermark}")
            known = self._known.setdefault(batch.first, batch)
            if known != batch:
                self._problem(f"{broker} gave {batch}, and before that it was {known}")
            self.position = batch.end
            is_first = False

    def again(self) -> None:
        """Read from the start once more: all must be as it was."""
        self.position = 0

    @property
    def batches(self) -> int:
        return len(self._known)

    def _problem(self, text: str) -> None:
        if len(self.problems) < _PROBLEMS_MAX:
            self.problems.append(f"{self._name}: {text}")


def read(watch: Watch, brokers: Sequence[str], topic: str, partition: int, stop: Stop) -> None:
    """Ask one broker until it fails, then any; now and then from the start again."""
    rng = random.Random(partition)
    connection: Connection | None = None
    broker = ""
    while not stop.asked:
        try:
            if connection is None:
                broker = rng.choice(brokers)
                connection = Connection(broker)
            reply = connection.fetch(
                topic,
                partition,
                watch.position,
                stable=rng.random() < 0.5,
                wait_ms=rng.choice([0, 50, 500]),
            )
        except OSError:
            connection = None
            time.sleep(0.05)
            continue
        watch.look(broker, reply)
        if reply.error:
            connection.close()
            connection = None
            time.sleep(0.02)
            if rng.random() < 0.02:
                watch.again()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m faults.raw", description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--history", type=Path, required=True)
    options = parser.parse_args(arguments)
    stop = Stop()
    brokers = options.bootstrap.split(",")
    watches = [Watch(f"{options.topic}/{p}") for p in range(options.partitions)]
    threads = [
        threading.Thread(target=read, args=(watch, brokers, options.topic, partition, stop))
        for partition, watch in enumerate(watches)
    ]
    for thread in threads:
        thread.start()
    while not stop.asked:
        time.sleep(0.1)
    for thread in threads:
        thread.join()
    with options.history.open("a") as file:
        History(file).add(
            "x-raw",
            fetches=sum(watch.fetches for watch in watches),
            batches=sum(watch.batches for watch in watches),
            behind=sum(watch.behind for watch in watches),
            problems=[text for watch in watches for text in watch.problems],
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
