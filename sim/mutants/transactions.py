"""Bugs of transactions: their coordinator, their markers, and what readers get."""

from typing import Any

from moldau.coordination import markers
from moldau.coordination.group_service import GroupService
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset
from moldau.replica.aborted_transactions import AbortedTransaction, AbortedTransactions
from moldau.replica.replica import Replica
from moldau.transactions import decide
from moldau.transactions.coordinator import TransactionCoordinator
from moldau.transactions.decisions import NoChange, TransactionDecision, WriteState
from moldau.transactions.events import EndTransaction
from moldau.transactions.replies import result_of
from moldau.transactions.results import Effect
from moldau.transactions.transaction_entry import TransactionEntry, TransactionWrite
from sim.mutants import mutant
from sim.mutants.groups import LEADERS
from sim.mutants.raft import ELECTIONS, LATE


def _same_epoch(stored: Any, event: Any, now_ms: Any, *, continues: bool) -> Any:
    return decide._initialize(
        event, now_ms, producer_id=stored.producer_id, epoch=stored.producer_epoch
    )


def _let_it_be(self: TransactionCoordinator, now: float, entry: TransactionEntry) -> None:
    pass


def _answer_ends_early(
    self: TransactionCoordinator,
    now: float,
    entry: TransactionEntry,
    event: Any,
    decision: TransactionDecision,
) -> None:
    if isinstance(event, EndTransaction) and isinstance(decision, WriteState):
        self._reply(event, result_of(event, NoChange(), decision.stored))
        self._write(TransactionWrite(entry, [decision.stored]))
    else:
        _execute(self, now, entry, event, decision)


_execute = TransactionCoordinator._execute


def _leave_the_decided(self: TransactionCoordinator, now: float) -> list[Effect]:
    self._unavailable = ErrorCode.NONE
    self._schedule_expiry(now)
    for entry in list(self._entries.values()):
        if entry.stored is not None and entry.stored.state.is_prepared:
            entry.unmarked = set(entry.stored.partitions)
        else:
            self._state_stored(now, entry)
    return self._take_effects()


def _list_nothing(
    self: AbortedTransactions, start: Offset, end: Offset
) -> list[AbortedTransaction]:
    return []


def _report_commits_to_groups(self: GroupService, *args: Any) -> Any:
    report = _transaction_ends(self, *args)
    return lambda is_commit: report(True)


_transaction_ends = GroupService.transaction_ends


MUTANTS = (
    mutant(
        "SkipsMarkers",
        "transactions",
        "a partition that refuses a marker counts as marked",
        LEADERS,
        (markers, "_ENDED", frozenset(ErrorCode)),
        transactional=2,
    ),
    mutant(
        "KeepsTheEpoch",
        "transactions",
        "a producer that restarts gets the epoch of the one before",
        ELECTIONS,
        (decide, "_next_epoch", _same_epoch),
        transactional=2,
    ),
    mutant(
        "NeverTimesOut",
        "transactions",
        "a transaction that nobody ends stays open",
        {"kill": 8.0},
        (TransactionCoordinator, "_time_out", _let_it_be),
        transactional=2,
    ),
    mutant(
        "ReadsTheUnstable",
        "transactions",
        "who reads committed gets what is still open",
        LATE,
        (Replica, "last_stable_offset", property(lambda self: self.high_watermark)),
        transactional=2,
        list_append=1,
    ),
    mutant(
        "ListsNoAborted",
        "transactions",
        "who reads committed is not sent what was aborted",
        LATE,
        (AbortedTransactions, "between", _list_nothing),
        transactional=2,
    ),
    mutant(
        "CommitsAbortedOffsets",
        "transactions",
        "offsets of a transaction that was aborted count",
        LATE,
        (GroupService, "transaction_ends", _report_commits_to_groups),
        transformers=2,
    ),
    mutant(
        "AnswersEndsEarly",
        "transactions",
        "an end is answered while the decision is being written",
        {"forsake": 4.0, "power": 6.0},
        (TransactionCoordinator, "_execute", _answer_ends_early),
        transactional=2,
        flush_seconds=0.2,
    ),
    mutant(
        "LeavesTheDecided",
        "transactions",
        "a new coordinator does not go on with what was decided before it",
        {"power": 5.0, "kill": 5.0},
        (TransactionCoordinator, "finish_loading", _leave_the_decided),
        transactional=2,
        flush_seconds=0.2,
    ),
)
