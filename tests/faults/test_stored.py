"""A compacted replica is put on record as it stands: records by name, offsets without a gap."""

import io
import json
from pathlib import Path

from faults.clients import NAME_HEADER, History, payload
from faults.stored import cleaned_files, record_replica
from moldau.log.disk_log import open_disk_log
from moldau.log.interface import LogConfig
from moldau.log.os_filesystem import OsFiles
from moldau.model.ids import Epoch, Offset, TimestampMs
from moldau.records.record import Headers, Record, build_batch
from moldau.testing.logs import flush, headers_of

TOPIC = "t"


def write_replica(home: Path, *batches: list[Record]) -> None:
    directory = home / "topics" / TOPIC / "id"
    directory.mkdir(parents=True)
    log = open_disk_log(OsFiles(directory), "0", LogConfig())
    for records in batches:
        data = build_batch(records, base_offset=log.end_offset, leader_epoch=Epoch(1))
        log.append(data, headers_of(data))
    flush(log)
    log.close()


def record(value: str, *, removes: bool = False) -> Record:
    headers: Headers = [(NAME_HEADER, value.encode())] if removes else []
    data = None if removes else payload(value, 40)
    return Record(Offset(0), TimestampMs(1), b"k1", data, headers)


def test_records_are_identified_by_their_names_also_those_that_remove_a_key(tmp_path: Path) -> None:
    write_replica(tmp_path, [record("p1:0"), record("p2:0")], [record("p1:1", removes=True)])
    file = io.StringIO()
    assert record_replica(tmp_path, TOPIC, 0, "replica 1", History(file))
    poll, end = (json.loads(line) for line in file.getvalue().splitlines())
    assert (poll["c"], poll["tp"]) == ("replica 1", "t/0")
    assert poll["r"] == [[0, "p1:0"], [1, "p2:0"], [2, "p1:1"]]
    assert (end["op"], end["c"], end["start"], end["end"]) == ("end", "replica 1", 0, 3)


def test_compacted_segments_are_recognized_by_the_number_in_their_names(tmp_path: Path) -> None:
    directory = tmp_path / "topics" / TOPIC / "id" / "0"
    directory.mkdir(parents=True)
    for name in ("0" * 20 + ".log", "0" * 20 + ".3.log", "0" * 20 + "-1.log", "0" * 20 + ".index"):
        (directory / name).touch()
    assert cleaned_files(tmp_path, TOPIC) == 1
