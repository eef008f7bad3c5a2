"""Owns compaction in the simulated world: each broker cleans its log when chance says so.

What the checks remember are the entries as they were written. A cleaned entry is told to them as
what it stands for, once it is proved to stand for that: all of it is committed, in the same epoch
and over the same range. What the logs still hold is compared by key when everything is level.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from moldau.log.clean import CleanRequest
from moldau.log.clean_run import remove_files
from moldau.log.interface import LogConfig, PartitionLog
from moldau.model.ids import Offset, RaftIndex, TimestampMs
from moldau.raft.messages import Append
from moldau.records.compact import is_filler, split_empty
from moldau.records.record import Record, read_records
from moldau.replica.fillers import cut_of
from moldau.testing.simulation.adapter import Item, batch_items
from moldau.testing.simulation.checks import Checker, Violation
from moldau.testing.simulation.network import Parcel
from moldau.testing.simulation.storage import DiskStorage

if TYPE_CHECKING:
    from moldau.testing.simulation.broker import SimBroker

COMPACT_MS = 400
"""Mean time between cleanings, of any broker."""
KEYS = 4
CONFIG = LogConfig(
    segment_bytes_max=700,
    index_interval_bytes=256,
    compact=True,
    delete_expired=False,
    dirty_ratio_min=0.0,
    delete_retention_ms=2000,
)


def clean(broker: "SimBroker", leader: "SimBroker | None", now: int) -> bool:
    """Clean a broker's log as far as it may; False if there was nothing to do."""
    process, log = broker.process, broker.storage.log
    if process is None:
        return False
    task = log.begin_clean(
        CleanRequest(
            now=TimestampMs(now),
            end_offset=log.offset_of(min(process.core.commit, log.flushed_index)),
            held_offset=held_offset(leader),
            producers=(),
        )
    )
    if task is None:
        return False
    try:
        result = task.run()
    except OSError:
        # The worker's failure: nothing that counts has changed.
        return False
    if not log.end_clean(task, result):
        return False
    if isinstance(broker.storage, DiskStorage):
        remove_files(broker.storage.disk, log.take_stale_files())
    return True


def held_offset(leader: "SimBroker | None") -> Offset:
    """What a leader knows to be everywhere; nothing, if it is none or cannot be asked."""
    if leader is None or leader.process is None:
        return Offset(0)
    log, held = leader.storage.log, leader.process.core.held
    start = log.start.offset + log.start.control_count
    return log.offset_of(held) if held > start else Offset(0)


def split_parcel(parcel: Parcel, log: PartitionLog) -> Parcel:
    """As the product's receiver does: no filler that is only partly new to the log."""
    message = parcel.message
    if not isinstance(message, Append):
        return parcel
    items: list[Item] = []
    for item in parcel.items:
        entry, header = item.entry, item.header
        cut: RaftIndex | None = None
        if header is not None and is_filler(header) and entry.start < log.end_index:
            cut = cut_of(header, entry.start, entry.end, log)
        if cut is None or header is None:
            items.append(item)
            continue
        halves = split_empty(header, Offset(header.base_offset + cut - entry.start))
        items += batch_items(entry.start, b"".join(halves))
    entries = tuple(item.entry for item in items)
    return parcel._replace(message=message._replace(entries=entries), items=tuple(items))


def originals(checker: Checker, items: Iterable[Item]) -> list[Item]:
    """The items as they were before anybody cleaned them. Raises Violation."""
    found: list[Item] = []
    for item in items:
        entry = item.entry
        known = checker.committed.between(entry.start, entry.end)
        is_whole = (
            bool(known)
            and known[0].entry.start == entry.start
            and known[-1].entry.end == entry.end
            and all(other.entry.epoch == entry.epoch for other in known)
        )
        if item.header is not None and is_filler(item.header):
            if not is_whole or any(other.header is None for other in known):
                raise Violation(f"an empty batch at {entry} stands for what is not committed")
            found += known
        elif is_whole and len(known) == 1 and _is_remnant(item, known[0]):
            found += known
        else:
            found.append(item)
    return found


def _is_remnant(item: Item, original: Item) -> bool:
    """Whether a batch is another with fewer records."""
    if item.header is None or original.header is None:
        return False
    left = read_records(item.data)
    return set(_facts(left)) <= set(_facts(read_records(original.data))) and (
        item.header.producer_id == original.header.producer_id
    )


def _facts(records: list[Record]) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in records]


def check_values(broker: "SimBroker", checker: Checker) -> None:
    """A broker has no other records than were committed, and the last one of every key if it has
    all: the beginning of a cleaned log lacks what a later record has replaced. Raises Violation.
    """
    log = broker.storage.log
    commit = broker.process.core.commit if broker.process is not None else RaftIndex(0)
    end = log.offset_of(commit)
    written = {
        record.offset: record
        for item in checker.committed.items
        if item.header is not None
        for record in read_records(item.data)
        if record.offset < end
    }
    held = {
        record.offset: record
        for batch in log.batches(log.start_offset)
        for record in read_records(batch)
        if record.offset < end
    }
    for offset, record in held.items():
        if record != written.get(offset):
            raise Violation(f"broker {broker.id} holds another record at {offset}")
    if commit < checker.committed_end:
        return
    kept = {record.key: record for _, record in sorted(held.items())}
    for record in {record.key: record for _, record in sorted(written.items())}.values():
        if record.offset < log.start_offset:
            continue
        if record.value is not None:
            if record.offset not in held:
                raise Violation(f"broker {broker.id} lost the last value of {record.key!r}")
        elif record.key in kept and kept[record.key].value is not None:
            raise Violation(f"broker {broker.id} has {record.key!r}, which was deleted")
