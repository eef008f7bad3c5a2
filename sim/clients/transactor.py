"""Transactions over the wire: one who has a transactional id, as Kafka's own client does it.

What may pass is asked for again until it is known. An error that ends the transaction is raised as
`Aborting`, one that ends the producer as `Ended`; both only if they may be: somebody else had the
transactional id meanwhile, or the transaction was open for too long. Any other is a violation.

Two protocols: in the older one partitions are added before they are written to, and the epoch
stays; in the newer one writes add them, and each end raises the epoch. After the older one lost an
answer it asks for a new epoch, since whatever is still on its way could end the next transaction.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset, ProducerEpoch, ProducerId, TimestampMs
from moldau.records.record import Record, build_batch
from moldau.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from moldau.wire.messages.end_txn import EndTxnRequest
from moldau.wire.messages.init_producer_id import InitProducerIdRequest
from moldau.wire.messages.metadata import MetadataRequest
from moldau.wire.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from moldau.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from moldau.wire.schema import Request
from sim.clients.producer import RETRIED
from sim.clients.wire import COORDINATOR_GONE, LEADER_GONE, Kafka, Lost, Place
from sim.scene import Scene

GROUPS: Final = 0
TRANSACTIONS: Final = 1
METADATA_VERSION: Final = 12
_ON_ITS_WAY_SECONDS: Final = 45.0
"""What was not answered may still be carried out for so long."""
_TRIES_SECONDS: Final = 0.1
_FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
_RESTARTED: Final = _FENCED | {
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
}
_ASKED_AGAIN: Final = COORDINATOR_GONE | {ErrorCode.CONCURRENT_TRANSACTIONS}
_ADDED_LATER: Final = _ASKED_AGAIN | {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
}
_COMMITTED_LATER: Final = COORDINATOR_GONE | {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REQUEST_TIMED_OUT,
}
_WRITTEN_LATER: Final = RETRIED | {ErrorCode.CONCURRENT_TRANSACTIONS}


class Aborting(Exception):
    """The transaction can only be aborted."""


class Ended(Exception):
    """The producer must start again."""


class _Attempt:
    """One request for a producer id, to any broker."""

    def __init__(self, start: float) -> None:
        self.start = start
        self.end = float("inf")
        """From here on it changes nothing."""
        self.is_granted = False


class Identity:
    """A transactional id, and who asked for it: all that may lock each other out."""

    def __init__(self, name: str, timeout_ms: int) -> None:
        self.name = name
        self.timeout_ms = timeout_ms
        self.attempts: list[_Attempt] = []

    def ask(self, now: float) -> _Attempt:
        self.attempts = [each for each in self.attempts if each.end > now - 600.0]
        attempt = _Attempt(now)
        self.attempts.append(attempt)
        return attempt

    def is_contested(self, holder: _Attempt) -> bool:
        """Whether somebody may have locked that one out."""
        return any(each is not holder and each.end >= holder.start for each in self.attempts)

    def is_taken(self, holder: _Attempt, asked: float) -> bool:
        """Whether that one was surely locked out before it asked for something."""
        return any(
            each.is_granted and each.start > holder.end and each.end < asked
            for each in self.attempts
        )


@dataclass(eq=False)
class _Batch:
    place: Place
    sequence: int
    data: bytes
    asked: float | None = None
    offset: int | None = None


class Transactor:
    """One producer of a transactional id. `begin` comes first, and after Ended."""

    def __init__(
        self,
        scene: Scene,
        kafka: Kafka,
        rng: random.Random,
        identity: Identity,
        *,
        rises: bool,
    ) -> None:
        self._scene = scene
        self._kafka = kafka
        self._rng = rng
        self._identity = identity
        self._rises = rises
        self.is_ready = False
        """Nothing is open, and the next transaction may begin."""
        self.is_commit_asked = False
        self._mine = _Attempt(0.0)
        self._id = ProducerId(-1)
        self._epoch = ProducerEpoch(-1)
        self._sequences: dict[Place, int] = {}
        self._entered: set[Place | str] = set()
        self._opened: float | None = None
        self._is_in_doubt = False
        """Something may still be on its way."""
        self._unacked: list[_Batch] = []
        self._versions: dict[int, int] = {}
        kafka.pin(MetadataRequest, METADATA_VERSION)

    # ---- the producer

    async def begin(self) -> None:
        """Fence the producer that had the transactional id."""
        self.is_ready = False
        while not await self._init(is_fresh=True):
            pass

    async def _init(self, *, is_fresh: bool) -> bool:
        """Whether there is a producer id now; if not, a fresh one has to be asked for."""
        while True:
            attempt = self._identity.ask(self._now) if is_fresh else self._mine
            code = ErrorCode.NETWORK_EXCEPTION
            try:
                answer = await self._ask_coordinator(
                    InitProducerIdRequest(
                        transactional_id=self._identity.name,
                        transaction_timeout_ms=self._identity.timeout_ms,
                        producer_id=-1 if is_fresh else self._id,
                        producer_epoch=-1 if is_fresh else self._epoch,
                    ),
                    None if is_fresh else (3, 5),
                )
                code = ErrorCode(answer.error_code)
            except Lost:
                pass
            finally:
                if is_fresh:
                    is_over = code in (ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS)
                    attempt.end = self._now + (0.0 if is_over else _ON_ITS_WAY_SECONDS)
            if code is ErrorCode.NONE:
                attempt.is_granted = True
                self._mine = attempt
                self._went_on(answer.producer_id, answer.producer_epoch)
                return True
            if code in _FENCED and (not is_fresh or self._identity.is_contested(attempt)):
                if not is_fresh:
                    self._check_disturbed("goes on", code)
                return False
            if code is not ErrorCode.NETWORK_EXCEPTION and code not in _ASKED_AGAIN:
                self._wrong("begins", code)
            await self._pause(code)

    def _went_on(self, producer_id: int, epoch: int) -> None:
        self._id, self._epoch = ProducerId(producer_id), ProducerEpoch(epoch)
        self._sequences.clear()
        self._is_in_doubt = False
        self._unacked.clear()
        self._open_next()

    def _open_next(self) -> None:
        self._entered.clear()
        self._opened = None
        self.is_commit_asked = False
        self.is_ready = True

    # ---- writes

    async def write(self, values: Mapping[Place, Sequence[str]]) -> dict[Place, int]:
        """Offsets of the first of each, -1 if not returned. Raises Aborting and Ended."""
        self._begun()
        if not self._rises:
            await self._add([place for place in values if place not in self._entered])
        batches = [self._batch(place, names) for place, names in values.items()]
        left = batches
        while left:
            answers = await asyncio.gather(
                *(self._send(group) for group in await self._by_leader(left)),
                return_exceptions=True,
            )
            failures = [each for each in answers if isinstance(each, BaseException)]
            for failure in failures:
                if not isinstance(failure, Aborting):
                    raise failure
            if failures:
                raise failures[0]
            left = [batch for batch in left if batch.offset is None]
            if left:
                await self._scene.pause(self._rng, _TRIES_SECONDS)
        return {batch.place: -1 if batch.offset is None else batch.offset for batch in batches}

    def _batch(self, place: Place, names: Sequence[str]) -> _Batch:
        records = [
            Record(Offset(number), TimestampMs(1_700_000_000_000), None, name.encode(), [])
            for number, name in enumerate(names)
        ]
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = sequence + len(records)
        data = build_batch(
            records,
            producer_id=self._id,
            producer_epoch=self._epoch,
            base_sequence=sequence,
            transactional=True,
        )
        batch = _Batch(place, sequence, data)
        self._unacked.append(batch)
        return batch

    async def _by_leader(self, batches: list[_Batch]) -> list[tuple[int, list[_Batch]]]:
        found: dict[int, list[_Batch]] = {}
        for batch in batches:
            try:
                leader = await self._kafka.leader(batch.place)
            except Lost:
                continue
            found.setdefault(leader, []).append(batch)
        return list(found.items())

    async def _send(self, group: tuple[int, list[_Batch]]) -> None:
        leader, batches = group
        topics: dict[str, list[ProducePartition]] = {}
        by_id: dict[tuple[str | bytes, int], _Batch] = {}
        for batch in batches:
            topic, index = batch.place
            topics.setdefault(topic, []).append(ProducePartition(index=index, records=batch.data))
            by_id[topic, index] = by_id[self._topic_id(topic), index] = batch
            batch.asked = batch.asked or self._now
        request = ProduceRequest(
            transactional_id=self._identity.name,
            acks=-1,
            timeout_ms=5000,
            topics=[
                ProduceTopic(name=topic, topic_id=self._topic_id(topic), partitions=partitions)
                for topic, partitions in topics.items()
            ],
        )
        version = self._version(request, (12, 13) if self._rises else (3, 11))
        try:
            answer = await self._kafka.ask(leader, request, version=version)
        except Lost:
            self._is_in_doubt = True
            for batch in batches:
                self._kafka.forget_leader(batch.place)
            return
        failures: list[Exception] = []
        for topic in answer.topics:
            for reported in topic.partitions:
                batch = by_id[topic.name or topic.topic_id, reported.index]
                try:
                    self._written(batch, ErrorCode(reported.error_code), reported.base_offset)
                except (Aborting, Ended) as error:
                    failures.append(error)
        for failure in sorted(failures, key=lambda each: isinstance(each, Aborting)):
            raise failure

    def _topic_id(self, topic: str) -> bytes:
        return self._kafka.topic_ids.get(topic, bytes(16))

    def _written(self, batch: _Batch, code: ErrorCode, offset: int) -> None:
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            batch.offset = offset if code is ErrorCode.NONE else -1
            self._unacked.remove(batch)
            self._check_holds(f"wrote to {batch.place}", batch.asked)
        elif code in _WRITTEN_LATER:
            self._kafka.forget_leader(batch.place)
        else:
            what = f"writes sequence {batch.sequence} to {batch.place}"
            self._judge(what, code, {ErrorCode.INVALID_PRODUCER_EPOCH})

    # ---- partitions and offsets

    async def _add(self, places: Sequence[Place]) -> None:
        if not places:
            return
        topics: dict[str, list[int]] = {}
        for topic, index in places:
            topics.setdefault(topic, []).append(index)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._identity.name,
            v3_and_below_producer_id=self._id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                for topic, indexes in topics.items()
            ],
        )

        def codes(answer: Any) -> set[int]:
            return {
                each.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            }

        await self._persist("adds partitions", request, (0, 3), codes, _ADDED_LATER)
        self._entered.update(places)

    async def commit_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        """Positions of a group, that count if the transaction does. Raises Aborting and Ended."""
        self._begun()
        if not self._rises and group not in self._entered:
            await self._persist(
                "adds offsets",
                AddOffsetsToTxnRequest(
                    transactional_id=self._identity.name,
                    producer_id=self._id,
                    producer_epoch=self._epoch,
                    group_id=group,
                ),
                (0, 4),
                lambda answer: {answer.error_code},
                _ASKED_AGAIN,
            )
            self._entered.add(group)
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for (topic, index), offset in offsets.items():
            partition = TxnOffsetCommitRequestPartition(
                partition_index=index, committed_offset=offset, committed_metadata=None
            )
            topics.setdefault(topic, []).append(partition)
        await self._persist(
            "commits offsets",
            TxnOffsetCommitRequest(
                transactional_id=self._identity.name,
                group_id=group,
                producer_id=self._id,
                producer_epoch=self._epoch,
                topics=[
                    TxnOffsetCommitRequestTopic(name=topic, partitions=partitions)
                    for topic, partitions in topics.items()
                ],
            ),
            (5, 5) if self._rises else (0, 4),
            lambda answer: {
                each.error_code for topic in answer.topics for each in topic.partitions
            },
            _COMMITTED_LATER,
            group=group,
        )

    async def _persist(
        self,
        what: str,
        request: Request,
        versions: tuple[int, int],
        codes: Callable[[Any], set[int]],
        later: frozenset[ErrorCode],
        *,
        group: str | None = None,
    ) -> None:
        """Until it is done. Raises Aborting and Ended."""
        asked = self._now
        while True:
            self._opened = self._opened or self._now
            try:
                answer = await self._ask_coordinator(request, versions, group=group)
            except Lost:
                self._is_in_doubt = True
                await self._scene.pause(self._rng, _TRIES_SECONDS)
                continue
            reported = {ErrorCode(code) for code in codes(answer)} - {ErrorCode.NONE}
            if not reported:
                self._check_holds(what, asked)
                return
            for code in sorted(reported - later):
                self._judge(what, code, set())
            if reported != {ErrorCode.CONCURRENT_TRANSACTIONS}:
                self._is_in_doubt = True
            await self._pause(min(reported), group=group)

    # ---- the end

    async def end(self, *, is_commit: bool) -> str:
        """The outcome. If `is_ready` is not set then, it has to start again."""
        is_open = self._rises or bool(self._entered)
        if not is_open:
            self._open_next()
            return "commit" if is_commit else "abort"
        self.is_ready = False
        self.is_commit_asked = is_commit
        is_sure = True
        asked = self._now
        request = EndTxnRequest(
            transactional_id=self._identity.name,
            producer_id=self._id,
            producer_epoch=self._epoch,
            committed=is_commit,
        )
        while True:
            try:
                answer = await self._ask_coordinator(request, (5, 5) if self._rises else (0, 4))
            except Lost:
                is_sure = False
                self._is_in_doubt = True
                await self._scene.pause(self._rng, _TRIES_SECONDS)
                continue
            code = ErrorCode(answer.error_code)
            if code is ErrorCode.NONE:
                self._check_holds("ended a transaction", asked)
                await self._go_on(answer)
                return "commit" if is_commit else "abort"
            if code in _ASKED_AGAIN:
                if code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                    is_sure = False
                    self._is_in_doubt = True
                await self._pause(code)
                continue
            what = "commits" if is_commit else "aborts"
            if code in _RESTARTED or code is ErrorCode.TRANSACTION_ABORTABLE:
                self._check_disturbed(what, code)
            else:
                self._wrong(what, code)
            return "unknown" if is_commit and not is_sure else "abort"

    async def _go_on(self, answer: Any) -> None:
        if self._rises:
            if answer.producer_id == self._id and answer.producer_epoch != self._epoch + 1:
                self._scene.violation(
                    f"{self._identity.name} got epoch {answer.producer_epoch} after {self._epoch}"
                )
            self._went_on(answer.producer_id, answer.producer_epoch)
        elif self._is_in_doubt or self._unacked:
            await self._init(is_fresh=False)
        else:
            self._open_next()

    # ---- what may be

    @property
    def _now(self) -> float:
        return self._scene.scheduler.now

    def _begun(self) -> None:
        self._opened = self._opened or self._now
        self.is_ready = False

    @property
    def _is_late(self) -> bool:
        """By half: the clocks of brokers need not agree."""
        seconds = self._identity.timeout_ms / 1000
        return self._opened is not None and self._now - self._opened > seconds / 2

    def _judge(self, what: str, code: ErrorCode, aborting: set[ErrorCode]) -> None:
        """Raises Aborting or Ended, whichever the code means."""
        if code is ErrorCode.TRANSACTION_ABORTABLE or code in aborting:
            self._check_disturbed(what, code)
            raise Aborting(f"{what}: {code.name}")
        if code in _RESTARTED:
            self._check_disturbed(what, code)
        else:
            self._wrong(what, code)
        raise Ended(f"{what}: {code.name}")

    def _check_disturbed(self, what: str, code: ErrorCode) -> None:
        self._scene.count(f"txn {code.name}")
        if not self._identity.is_contested(self._mine) and not self._is_late:
            self._wrong(what, code)

    def _check_holds(self, what: str, asked: float | None) -> None:
        if asked is not None and self._identity.is_taken(self._mine, asked):
            self._scene.violation(
                f"{self._kafka.name} {what} as {self._identity.name}, "
                f"epoch {self._epoch}, although it was locked out"
            )

    def _wrong(self, what: str, code: ErrorCode) -> None:
        self._scene.violation(
            f"{self._kafka.name} {what} as {self._identity.name}, "
            f"producer {self._id}, epoch {self._epoch}: {code.name}"
        )

    # ---- the way there

    def _version(self, request: Request, versions: tuple[int, int] | None) -> int:
        first, last = versions or request.VERSIONS
        key = request.API_KEY
        known = self._versions.get(key)
        if known is None or not first <= known <= last:
            known = self._versions[key] = self._rng.randint(first, last)
        return known

    async def _ask_coordinator(
        self,
        request: Request,
        versions: tuple[int, int] | None,
        *,
        group: str | None = None,
    ) -> Any:
        kind, key = self._coordinates(group)
        version = self._version(request, versions)
        return await self._kafka.ask_coordinator(kind, key, request, version=version)

    def _coordinates(self, group: str | None) -> tuple[int, str]:
        return (TRANSACTIONS, self._identity.name) if group is None else (GROUPS, group)

    async def _pause(self, code: ErrorCode, *, group: str | None = None) -> None:
        if code in COORDINATOR_GONE or code in LEADER_GONE:
            self._kafka.forget_coordinator(*self._coordinates(group))
        await self._scene.pause(self._rng, _TRIES_SECONDS)
