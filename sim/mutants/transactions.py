"""Mistakes of transactions: their coordinator, their markers, and what readers are told."""

from typing import Any

from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset
from moldau.replica.aborted import AbortedList, AbortedTransaction
from moldau.replica.replica import Replica
from moldau.service import markers
from moldau.service.groups import GroupService
from moldau.service.markers import MarkerWriter
from moldau.service.transactional_produce import (
    ADDS_FROM,
    TransactionalProduce,
    TransactionalWrite,
)
from moldau.transactions import coordinator, decide
from moldau.transactions.coordinator import Coordinator
from moldau.transactions.decide import Change, Settled
from moldau.transactions.entries import Entry, Write
from moldau.transactions.events import EndTransaction
from sim.mutants import mutant
from sim.mutants.groups import LEADERS
from sim.mutants.raft import ELECTIONS, LATE


def _write_and_answer(self: Coordinator, write: Write) -> None:
    event, state = write.answered, write.states[-1]
    if isinstance(event, EndTransaction):
        self._reply(event, coordinator._answer(event, Settled(), state))
        write.answered = None
    _write(self, write)


_write = Coordinator._write


def _same_epoch(stored: Any, event: Any, now_ms: Any, *, goes_on: bool) -> Any:
    return Change(
        decide._initialized(
            event, now_ms, producer_id=stored.producer_id, epoch=stored.producer_epoch
        )
    )


def _let_it_be(self: Coordinator, now: float, entry: Entry) -> None:
    pass


def _end_loading(self: Coordinator, now: float) -> list[Any]:
    self._unavailable = ErrorCode.NONE
    self._schedule_expiry(now)
    return self._take_effects()


def _list_nothing(self: AbortedList, start: Offset, end: Offset) -> list[AbortedTransaction]:
    return []


def _take_any_number(self: MarkerWriter, marking: Any, partition: Any) -> None:
    pass


def _tell_groups_of_commits(self: GroupService, *args: Any) -> Any:
    tell = _transaction_ends(self, *args)
    return lambda is_commit: tell(True)


_transaction_ends = GroupService.transaction_ends


async def _ask_for_new_clients(
    self: TransactionalProduce, key: Any, line: Any, first: TransactionalWrite
) -> None:
    if first.api_version >= ADDS_FROM:
        await _ask(self, key, line, first)
        return
    self._close(key, line)
    self._answer(line, ErrorCode.NONE)


_ask = TransactionalProduce._ask


MUTANTS = (
    mutant(
        "SkipsMarkers",
        "txn",
        "a partition that refuses a marker counts as marked",
        LEADERS,
        (markers, "_OVER", frozenset(ErrorCode)),
        transactional=2,
    ),
    mutant(
        "AnswersEndsEarly",
        "txn",
        "the end of a transaction is answered before it is stored",
        {"slow-network": 2.0, "kill": 2.5, "isolate": 4.0},
        (Coordinator, "_write", _write_and_answer),
        transactional=4,
    ),
    mutant(
        "KeepsTheEpoch",
        "txn",
        "who begins anew gets the epoch of the one before",
        ELECTIONS,
        (decide, "_next_epoch", _same_epoch),
        transactional=2,
    ),
    mutant(
        "NeverTimesOut",
        "txn",
        "a transaction that nobody ends stays open",
        {"kill": 8.0},
        (Coordinator, "_time_out", _let_it_be),
        transactional=2,
    ),
    mutant(
        "LeavesTheDecided",
        "txn",
        "a new coordinator does not go on with what another one decided",
        {"kill": 3.0, "isolate": 3.0, "cut": 3.0, "slow-network": 5.0},
        (Coordinator, "finish_loading", _end_loading),
        transactional=2,
    ),
    mutant(
        "ReadsTheUnstable",
        "txn",
        "who reads committed gets what is still open",
        LATE,
        (Replica, "last_stable_offset", property(lambda self: self.high_watermark)),
        transactional=2,
        list_append=1,
    ),
    mutant(
        "ListsNoAborted",
        "txn",
        "who reads committed does not hear what was aborted",
        LATE,
        (AbortedList, "between", _list_nothing),
        transactional=2,
    ),
    mutant(
        "VerifiesNothing",
        "txn",
        "a batch of an older client is taken without asking whether its transaction is open",
        LATE | ELECTIONS,
        (TransactionalProduce, "_ask", _ask_for_new_clients),
        transactional=2,
    ),
    mutant(
        "TakesLateMarkers",
        "txn",
        "a marker that was held up ends the next transaction",
        LATE | LEADERS,
        (MarkerWriter, "_check_number", _take_any_number),
        transactional=2,
    ),
    mutant(
        "CommitsAbortedOffsets",
        "txn",
        "offsets of a transaction that was aborted count",
        LATE,
        (GroupService, "transaction_ends", _tell_groups_of_commits),
        transformers=2,
    ),
)
