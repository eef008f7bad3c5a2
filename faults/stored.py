"""A look into compacted replicas on disk, each of which keeps what it likes of what may go.

Bytes cannot be compared there (faults/replicas.py does that for others), so the records of each are
put on record as if somebody had read them, and the checker judges every replica by itself. Which
files count is decided by the broker's own code; a broker must not run on them.
"""

from pathlib import Path

from faults.clients import NAME_HEADER, History, value_of
from moldau.log.disk_log import open_disk_log
from moldau.log.interface import LogConfig
from moldau.log.os_filesystem import OsFiles
from moldau.records.batch import read_header
from moldau.records.record import Record, read_records


def cleaned_files(data_dir: Path, topic: str) -> int:
    """Segments that a compaction wrote; their names carry its number."""
    found = (data_dir / "topics" / topic).glob("*/*/*.log")
    return sum(path.name.count(".") == 2 for path in found)


def record_replica(
    data_dir: Path, topic: str, partition: int, reader: str, reported: History
) -> bool:
    """Put one replica on record as read by `reader`; False if offsets of it are missing."""
    (path,) = (data_dir / "topics" / topic).glob(f"*/{partition}")
    log = open_disk_log(OsFiles(path.parent), path.name, LogConfig())
    offset, is_dense = log.start_offset, True
    records: list[tuple[int, str]] = []
    for batch in log.batches(offset):
        header = read_header(batch)
        # Also what compaction emptied stands for its offsets.
        is_dense = is_dense and header.base_offset == offset
        offset = header.next_offset
        if not header.is_control:
            records += [(record.offset, _name_of(record)) for record in read_records(batch)]
    key = f"{topic}/{partition}"
    reported.add("poll", c=reader, tp=key, r=records)
    reported.add("end", c=reader, tp=key, start=log.start_offset, end=log.end_offset)
    reported.flush()
    return is_dense and offset == log.end_offset


def _name_of(record: Record) -> str:
    if record.value is None:
        for key, value in record.headers:
            if key == NAME_HEADER and value is not None:
                return value.decode(errors="replace")
    return value_of(record.value)
