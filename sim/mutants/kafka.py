"""Bugs of the Kafka protocol server: acks, errors, isolation, order."""

from typing import Any

from moldau.edge.kafka import produce_transactional
from moldau.edge.kafka.handlers import fetch, list_offsets, offset_commit, produce
from moldau.model.errors import ErrorCode
from moldau.net.connection import Connection
from sim.mutants import mutant
from sim.mutants.groups import CLASSIC, CONSUMER, LEADERS
from sim.mutants.raft import DIVERGENCE, ELECTIONS, LATE


async def _commit_well(call: Any, request: Any, offsets: Any) -> list[ErrorCode]:
    return [ErrorCode.NONE for _ in await _commit(call, request, offsets)]


_commit = offset_commit._commit


def _send_what_is_ready(self: Connection) -> None:
    replies = sorted(self._replies, key=lambda reply: reply.chunks is None)
    self._replies.clear()
    self._replies.extend(replies)
    _reply_completed(self)


_reply_completed = Connection.reply_completed


MUTANTS = (
    mutant(
        "TakesAllForOne",
        "edge/kafka",
        "acks=all is answered when the leader has it",
        DIVERGENCE,
        (produce, "ACKS_ALL", 2),
        (produce_transactional, "ACKS_ALL", 2),
    ),
    mutant(
        "SwallowsErrors",
        "edge/kafka",
        "a commit of offsets is answered without its errors",
        LEADERS,
        (offset_commit, "_commit", _commit_well),
        groups=CLASSIC + CONSUMER,
        partitions=3,
    ),
    mutant(
        "IgnoresIsolation",
        "edge/kafka",
        "a fetch of who reads committed is taken for one of everything",
        LATE,
        (fetch, "_READ_COMMITTED", 2),
        transactional=2,
    ),
    mutant(
        "ListsTheUnstable",
        "edge/kafka",
        "a read_committed consumer gets the end of everything",
        LATE,
        (list_offsets, "_READ_COMMITTED", 2),
        transactional=2,
    ),
    mutant(
        "AnswersOutOfOrder",
        "edge/kafka",
        "what is ready first is answered first",
        ELECTIONS,
        (Connection, "reply_completed", _send_what_is_ready),
        partitions=3,
    ),
)
