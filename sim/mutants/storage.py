"""Mistakes of the log and of the replicas over it."""

from collections.abc import Sequence
from typing import Any

from moldau.log.compaction.key_map import KeyMap
from moldau.log.control_journal import JournalFlush
from moldau.log.filesystem import Files
from moldau.log.flush import DataFlush
from moldau.log.vote_journal import VoteJournal
from moldau.log.writer import LogWriter
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_EPOCH, Offset
from moldau.raft.membership import NO_BROKER
from moldau.replica.producers import ProducerTable
from moldau.replica.replica import Replica
from moldau.replica.vote_writer import VoteWriter
from moldau.server import storage
from sim.mutants import mutant
from sim.mutants.raft import DIVERGENCE, ELECTIONS, POWER
from sim.simdisk import SimDisk


def _flush_nothing(self: DataFlush) -> None:
    pass


def _mark_all_flushed(self: LogWriter, task: DataFlush) -> None:
    _end_data_flush(self, task)
    self._state.flushed_offset = self._state.end_offset


_end_data_flush = LogWriter._end_data_flush


def _end_late(self: LogWriter, task: Any) -> None:
    task.truncations = self._state.truncations
    _end_flush(self, task)


_end_flush = LogWriter.end_flush


def _store_unflushed(self: VoteJournal, data: bytes) -> None:
    file = self._files.open(self._path)
    file.pwrite(data, self._position)
    self._position += len(data)


def _forget_vote(self: VoteWriter, group: str) -> Any:
    return (NO_EPOCH, NO_BROKER)


def _write_and_report(self: VoteWriter) -> None:
    asked = dict(self._requested)
    _write(self)
    if asked:
        self._on_persisted(asked)


_write = VoteWriter.write


def _newer_than_all(self: KeyMap, keys: Sequence[bytes | None]) -> list[int]:
    return [offset + 1 if offset >= 0 else offset for offset in _newest(self, keys)]


_newest = KeyMap.newest


def _leave_no_fence(files: Files, reason: str) -> None:
    pass


def _sync_nothing(self: SimDisk, path: str) -> None:
    self._check_power()


def _acknowledge_at_once(self: Replica, offset: Offset, callback: Any) -> None:
    callback(ErrorCode.NONE)


def _remember_nothing(self: Replica, *_: Any) -> None:
    pass


def _keep_cut(self: Replica, group: Any, offset: Offset) -> None:
    self._guards.clear()


def _check_nothing(self: ProducerTable, header: Any) -> None:
    return None


MUTANTS = (
    mutant(
        "FlushesNothing",
        "log",
        "a flush of records ends without the disk",
        POWER,
        (DataFlush, "run", _flush_nothing),
    ),
    mutant(
        "FlushesNoControls",
        "log",
        "a flush of control entries ends without the disk",
        POWER,
        (JournalFlush, "run", _flush_nothing),
    ),
    mutant(
        "CountsWhatCameLater",
        "log",
        "a flush counts for what was appended after it began",
        POWER,
        (LogWriter, "_end_data_flush", _mark_all_flushed),
    ),
    mutant(
        "CountsLateFlushes",
        "log",
        "the end of a flush counts, though what it covered was cut meanwhile",
        {"forsake": 4.0},
        (LogWriter, "end_flush", _end_late),
        flush_seconds=0.5,
        pause_seconds=0.05,
    ),
    mutant(
        "VotesInMemory",
        "log",
        "votes are written and not flushed",
        POWER,
        (VoteJournal, "_store", _store_unflushed),
        brokers=5,
    ),
    mutant(
        "TrustsThePageCache",
        "log",
        "a start after a failed flush believes what it reads",
        {"flush-error": 3.0, "power": 5.0, "kill": 8.0},
        (storage, "write_fence", _leave_no_fence),
    ),
    mutant(
        "SyncsNoNames",
        "log",
        "names of new files are not made durable",
        POWER,
        (SimDisk, "sync_dir", _sync_nothing),
        segment_bytes=4096,
    ),
    mutant(
        "RemovesTheLast",
        "log",
        "compaction removes the last record of a key with those before it",
        ELECTIONS,
        (KeyMap, "newest", _newer_than_all),
        keyed=2,
    ),
    mutant(
        "ForgetsVotes",
        "replica",
        "a broker starts without reading its votes",
        None,
        (VoteWriter, "get", _forget_vote),
        scenarios=("vote_then_crash",),
    ),
    mutant(
        "ReportsVotesEarly",
        "replica",
        "a vote counts as written while it is being written",
        POWER | {"isolate": 6.0},
        (VoteWriter, "write", _write_and_report),
        brokers=5,
        flush_seconds=0.2,
    ),
    mutant(
        "AnswersBeforeTheCommit",
        "replica",
        "acks=all is answered when the leader has it",
        DIVERGENCE,
        (Replica, "when_acknowledged", _acknowledge_at_once),
        (Replica, "is_acknowledged", lambda self, offset: True),
    ),
    mutant(
        "FollowersForgetSequences",
        "replica",
        "followers do not keep the sequences of producers",
        ELECTIONS,
        (Replica, "on_stored", _remember_nothing),
    ),
    mutant(
        "KeepsSequencesOfTheCut",
        "replica",
        "sequences of batches that were cut stay",
        DIVERGENCE,
        (Replica, "on_truncated", _keep_cut),
    ),
    mutant(
        "TakesDuplicates",
        "replica",
        "a batch that comes again is stored again",
        ELECTIONS | {"break": 3.0},
        (ProducerTable, "check", _check_nothing),
    ),
)
