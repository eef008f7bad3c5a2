"""The comparison of replicas on disk: the same batches, byte by byte, at the same offsets.

It reads the files itself and imports nothing of the broker: a segment is a page, then batches of
Kafka's format without gaps, then perhaps zeros.
"""

import hashlib
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_PAGE_BYTES: Final = 4096
_NAME: Final = re.compile(r"^(\d{20})(?:-(\d+))?\.log$")
_HEAD: Final = struct.Struct(">qi")
_COUNT: Final = struct.Struct(">i")
_LAST_DELTA_AT: Final = 23
_PRODUCER: Final = struct.Struct(">qh")
_PRODUCER_AT: Final = 43
_BATCH_BYTES_MIN: Final = 61


@dataclass(slots=True)
class Comparison:
    """What was compared."""

    partitions: int = 0
    replicas: int = 0
    bumps: int = 0
    """Producers that began a new epoch: they got the error that a sequence is missing, and what was
    stored without an answer may be stored twice."""
    differences: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Replica:
    """The batches of one replica: next offset and digest of each, by first offset."""

    batches: dict[int, tuple[int, bytes]]
    producers: set[tuple[int, int]]
    """Ids with their epochs."""

    @property
    def start(self) -> int:
        return min(self.batches, default=0)

    @property
    def end(self) -> int:
        return max((end for end, _ in self.batches.values()), default=0)


def read_replica(directory: Path) -> Replica:
    """All batches in the segments of the newest generation (a reset starts a new one)."""
    found: dict[int, list[tuple[int, Path]]] = {}
    for path in directory.glob("*.log"):
        if match := _NAME.match(path.name):
            found.setdefault(int(match[2] or 0), []).append((int(match[1]), path))
    batches: dict[int, tuple[int, bytes]] = {}
    producers: set[tuple[int, int]] = set()
    for _, path in sorted(found[max(found)]) if found else []:
        for first, end, digest, producer in _batches(path.read_bytes()):
            batches[first] = (end, digest)
            producers.add(producer)
    return Replica(batches, producers)


def _batches(data: bytes) -> Iterator[tuple[int, int, bytes, tuple[int, int]]]:
    position = _PAGE_BYTES
    while position + _BATCH_BYTES_MIN <= len(data):
        first, length = _HEAD.unpack_from(data, position)
        size = _HEAD.size + length
        if size < _BATCH_BYTES_MIN or position + size > len(data):
            return
        (last_delta,) = _COUNT.unpack_from(data, position + _LAST_DELTA_AT)
        digest = hashlib.sha1(data[position : position + size]).digest()
        producer = _PRODUCER.unpack_from(data, position + _PRODUCER_AT)
        yield first, first + last_delta + 1, digest, producer
        position += size


def compare(directories: Mapping[int, Sequence[Path]], topic: str) -> Comparison:
    """Each partition in all of its data directories."""
    done = Comparison(partitions=len(directories))
    producers: set[tuple[int, int]] = set()
    for partition, homes in directories.items():
        replicas = {}
        for home in homes:
            places = list((home / "topics" / topic).glob(f"*/{partition}"))
            if len(places) != 1:
                done.differences.append(f"{home} has {len(places)} folders of {partition}")
                continue
            replicas[str(home)] = read_replica(places[0])
            producers |= replicas[str(home)].producers
        done.replicas += len(replicas)
        _compare(partition, replicas, done.differences)
    done.bumps = sum(producer >= 0 and epoch > 0 for producer, epoch in producers)
    return done


def _compare(partition: int, replicas: Mapping[str, Replica], differences: list[str]) -> None:
    if not replicas:
        return
    # Retention runs by itself on each; what all of them hold must be the same.
    start = max(replica.start for replica in replicas.values())
    ends = {name: replica.end for name, replica in replicas.items()}
    if len(set(ends.values())) > 1:
        differences.append(f"partition {partition} ends differently: {ends}")
        return
    name, reference = next(iter(replicas.items()))
    for other, replica in replicas.items():
        for first in reference.batches.keys() | replica.batches.keys():
            if first >= start and reference.batches.get(first) != replica.batches.get(first):
                differences.append(
                    f"partition {partition}: {name} and {other} differ at offset {first}"
                )
                break
