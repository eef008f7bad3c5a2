"""Transactional writes: who is asked before one opens, what waits behind it, what is refused."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from memory_log import MemoryLog

from moldau.data import transactional_produce
from moldau.data.disk_space import DiskGuard
from moldau.data.partitions import Partitions
from moldau.data.produce import ACKS_ALL, ProduceService
from moldau.data.traffic import Traffic
from moldau.data.transactional_produce import (
    AppendOutcome,
    TransactionalProduce,
    TransactionalWrite,
    error_for,
)
from moldau.log.interface import LogConfig
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.flush import FlushPolicy
from moldau.model.ids import (
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)
from moldau.records.control import EndMarker
from moldau.records.record import Record, build_batch, read_records
from moldau.replica.replica import Replica
from moldau.testing.replicas import ManualClock, lead_replica, make_driver, make_flusher
from moldau.testing.waiting import until

PARTITION = TopicPartition("t", PartitionIndex(0))
OLD, NEW = 11, 12
"""Versions of Produce: of clients that add partitions themselves, and of those that do not."""


class Gate:
    """A coordinator that answers when the test says so, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int, list[TopicPartition], bool]] = []
        self.answers: list[asyncio.Future[ErrorCode]] = []
        self.refusal: RefusedError | None = None
        self.known: set[tuple[str, int, int, TopicPartition]] = set()
        """What it can say without waiting."""

    def is_admitted(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partition: TopicPartition,
    ) -> bool:
        return (transactional_id, producer_id, producer_epoch, partition) in self.known

    async def admit(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partitions: Iterable[TopicPartition],
        *,
        adds: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        named = list(partitions)
        self.asked.append((transactional_id, producer_id, producer_epoch, named, adds))
        if self.refusal is not None:
            raise self.refusal
        answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        return dict.fromkeys(named, await answer)


class World:
    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.gate = Gate()
        hosted = SimpleNamespace(
            replica=replica,
            config=SimpleNamespace(message_bytes_max=1 << 20, insync_replicas_min=1),
            is_plain=True,
            internal=False,
            stamps_append_time=False,
            traffic=Traffic(),
        )
        self.hosted = hosted

        def lead(topic: str, index: int) -> Any:
            replica.check_leadership()
            return hosted

        partitions = cast(Partitions, SimpleNamespace(get=lead, find=lead, lead=lead))
        produce = ProduceService(partitions, DiskGuard(), ManualClock())
        loop = asyncio.get_running_loop()
        self.service = TransactionalProduce(loop, partitions, produce, self.gate)
        self.outcomes: list[int | ErrorCode] = []
        """Base offset or refusal, in the order in which they were told."""

    @property
    def waiting_count(self) -> int:
        return sum(len(queue.writes) for queue in self.service._queues.values())

    def write(
        self,
        sequence: int,
        *,
        epoch: int = 0,
        version: int = OLD,
        transactional: bool = True,
        producer: int = 7,
        name: str = "tx",
    ) -> None:
        value = f"{'v' if name == 'tx' else name}{sequence}".encode()
        records = [Record(Offset(0), TimestampMs(1), None, value, [])]
        batch = bytearray(
            build_batch(
                records,
                producer_id=ProducerId(producer),
                producer_epoch=ProducerEpoch(epoch),
                base_sequence=sequence,
                transactional=transactional,
            )
        )
        write = TransactionalWrite(name, "t", 0, memoryview(batch), ACKS_ALL, version)
        self.service.append(write, self.heard)
        # The buffer that it came in is used for the next request.
        batch[:] = bytes(len(batch))

    def heard(self, outcome: AppendOutcome) -> None:
        if isinstance(outcome, RefusedError):
            self.outcomes.append(outcome.code)
        else:
            self.outcomes.append(outcome.base_offset)

    async def answer(self, code: ErrorCode = ErrorCode.NONE) -> None:
        """To the last question, once it was asked."""
        await settle()
        self.gate.answers[-1].set_result(code)
        await settle()

    def mark(self, *, epoch: int = 0, is_commit: bool = True, version: int = 0) -> None:
        self.replica.write_marker(
            ProducerId(7),
            ProducerEpoch(epoch),
            EndMarker(is_commit, 1),
            lambda code: None,
            transaction_version=version,
        )


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@asynccontextmanager
async def opened(log: MemoryLog | None = None) -> AsyncIterator[World]:
    flusher = make_flusher(threads=0)
    driver = make_driver(flusher)
    replica = await lead_replica(
        log or MemoryLog(LogConfig(flush=FlushPolicy.NEVER)), flusher, driver=driver
    )
    world = World(replica)
    yield world
    world.service.stop()
    driver.stop()
    flusher.stop()


@pytest.mark.parametrize(("version", "adds"), [(OLD, False), (NEW, True)])
async def test_the_first_batch_waits_for_the_coordinator_and_the_next_ones_do_not(
    version: int, adds: bool
) -> None:
    async with opened() as world:
        world.write(0, version=version)
        assert (world.outcomes, world.replica.log.end_offset) == ([], 0)
        await world.answer()
        assert world.outcomes == [0]
        assert world.gate.asked == [("tx", 7, 0, [PARTITION], adds)]
        world.write(1, version=version)
        assert world.outcomes == [0, 1]
        assert len(world.gate.asked) == 1


async def test_a_batch_whose_transaction_is_known_to_be_open_waits_for_nothing() -> None:
    async with opened() as world:
        world.gate.known.add(("tx", 7, 0, PARTITION))
        world.write(0)
        assert (world.outcomes, world.gate.asked) == ([0], [])
        world.gate.known.clear()
        # The leader remembers, as after a question.
        world.write(1)
        assert (world.outcomes, world.gate.asked) == ([0, 1], [])
        assert [read.value for read in records_of(world.replica)] == [b"v0", b"v1"]


async def test_a_batch_stays_behind_one_that_waits_for_the_coordinator() -> None:
    async with opened() as world:
        world.write(0)
        world.gate.known.add(("tx", 7, 0, PARTITION))
        world.write(1)
        assert world.outcomes == []
        await world.answer()
        assert world.outcomes == [0, 1]


async def test_batches_that_come_meanwhile_stand_in_line() -> None:
    async with opened() as world:
        for sequence in range(4):
            world.write(sequence)
        await settle()
        assert (len(world.gate.asked), world.waiting_count) == (1, 4)
        await world.answer()
        assert world.outcomes == [0, 1, 2, 3]
        assert world.waiting_count == 0
        values = [read.value for read in records_of(world.replica)]
        assert values == [b"v0", b"v1", b"v2", b"v3"]


def records_of(replica: Replica) -> list[Record]:
    return [record for batch in replica.log.batches(Offset(0)) for record in read_records(batch)]


async def test_what_the_coordinator_refuses_refuses_all_that_wait() -> None:
    async with opened() as world:
        world.write(0)
        world.write(1)
        await world.answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        assert world.outcomes == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
        assert world.replica.log.end_offset == 0
        world.write(0)
        await world.answer()
        assert world.outcomes[2:] == [0]


async def test_a_batch_does_not_overtake_one_that_was_refused_before_it() -> None:
    async with opened() as world:
        world.write(0)
        await world.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
        # It was on its way already, and the coordinator is willing by now.
        world.write(1)
        await world.answer()
        assert world.outcomes[1:] == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
        world.write(0)
        await world.answer()
        world.write(1)
        assert world.outcomes[2:] == [0, 1]


STRANGER = "stranger"
"""A transactional id of somebody else, who knows the producer id, the epoch and the sequence."""
NOT_HIS = ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.safety
async def test_a_batch_under_another_transactional_id_does_not_get_into_an_open_transaction() -> (
    None
):
    async with opened() as world:
        world.write(0)
        await world.answer()
        world.write(1, name=STRANGER)
        assert world.outcomes == [0]
        await world.answer(NOT_HIS)
        assert world.gate.asked[1:] == [(STRANGER, 7, 0, [PARTITION], False)]
        # The producer is not asked about again, and its batch is no retry.
        world.write(1)
        assert world.outcomes == [0, NOT_HIS, 1]
        assert len(world.gate.asked) == 2
        assert [read.value for read in records_of(world.replica)] == [b"v0", b"v1"]


@pytest.mark.safety
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_batch_under_another_transactional_id_stands_in_a_line_of_its_own(
    is_first: bool,
) -> None:
    async with opened() as world:
        if is_first:
            world.write(0, name=STRANGER)
        world.write(0)
        if not is_first:
            world.write(1, name=STRANGER)
        await settle()
        for asked, answer in zip(world.gate.asked, world.gate.answers, strict=True):
            answer.set_result(NOT_HIS if asked[0] == STRANGER else ErrorCode.NONE)
        await settle()
        assert sorted(map(int, world.outcomes)) == [0, NOT_HIS]
        assert [read.value for read in records_of(world.replica)] == [b"v0"]


async def test_what_was_tried_under_another_transactional_id_does_not_hinder_the_producer() -> None:
    async with opened() as world:
        for epoch in (0, 32767):
            world.write(0, epoch=epoch, name=STRANGER)
            await world.answer(NOT_HIS)
        # Neither as a batch that is missing before it, nor as a later epoch.
        world.write(5)
        await world.answer()
        assert world.outcomes == [NOT_HIS, NOT_HIS, 0]


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE])
async def test_an_open_transaction_is_verified_again_by_each_leader_and_once(
    code: ErrorCode,
) -> None:
    log = MemoryLog(LogConfig(flush=FlushPolicy.NEVER))
    async with opened(log) as world:
        world.write(0)
        await world.answer()
    async with opened(log) as world:
        assert world.replica.producers.first_unstable == 0
        for sequence in (1, 2):
            world.write(sequence)
        assert world.outcomes == []
        await world.answer(code)
        assert world.gate.asked == [("tx", 7, 0, [PARTITION], False)]
        if code is ErrorCode.NONE:
            world.write(3)
            assert world.outcomes == [1, 2, 3]
            assert len(world.gate.asked) == 1
        else:
            assert world.outcomes == [code] * 2
            assert world.replica.log.end_offset == 1


async def test_an_end_between_answer_and_append_keeps_out_what_was_verified_again() -> None:
    log = MemoryLog(LogConfig(flush=FlushPolicy.NEVER))
    async with opened(log) as world:
        world.write(0)
        await world.answer()
    async with opened(log) as world:
        world.write(1)
        await settle()
        world.mark()
        await world.answer()
        assert world.outcomes == [ErrorCode.INVALID_TXN_STATE]
        assert log.end_offset == 2


async def test_a_marker_that_comes_between_answer_and_append_keeps_the_batch_out() -> None:
    async with opened() as world:
        world.write(0)
        await settle()
        world.mark()
        await world.answer()
        assert world.outcomes == [ErrorCode.INVALID_TXN_STATE]
        assert world.replica.producers.first_unstable is None


async def test_the_marker_of_a_transaction_does_not_keep_the_next_one_out() -> None:
    """The coordinator answers the end before the marker is here, and the client is quick."""
    async with opened() as world:
        world.write(0, version=NEW)
        await world.answer()
        world.write(0, epoch=1, version=NEW)
        await settle()
        world.mark(epoch=1, version=2)
        await world.answer()
        assert world.outcomes[1] >= 0
        assert world.replica.producers.first_unstable is not None


async def test_each_transaction_is_verified_again() -> None:
    async with opened() as world:
        world.write(0)
        await world.answer()
        world.mark()
        world.write(1)
        await settle()
        assert len(world.gate.asked) == 2
        await world.answer()
        assert world.outcomes == [0, 2]


async def test_a_retry_of_a_batch_whose_transaction_has_ended_is_recognised() -> None:
    async with opened() as world:
        world.write(0)
        await world.answer()
        world.mark()
        world.write(0)
        assert world.outcomes == [0, 0]
        assert len(world.gate.asked) == 1


async def test_a_batch_of_an_earlier_epoch_is_refused_without_a_request() -> None:
    async with opened() as world:
        world.write(0, version=NEW)
        await world.answer()
        world.mark(epoch=1, version=2)
        world.write(1, version=NEW)
        assert world.outcomes == [0, ErrorCode.INVALID_PRODUCER_EPOCH]
        assert len(world.gate.asked) == 1
        world.write(0, epoch=1, version=NEW)
        await world.answer()
        assert world.outcomes[2:] == [2]


async def test_two_epochs_stand_in_lines_of_their_own_and_the_newer_wins() -> None:
    async with opened() as world:
        world.write(0)
        world.write(0, epoch=1)
        world.write(1)
        await settle()
        assert world.outcomes == [ErrorCode.INVALID_PRODUCER_EPOCH]
        for answer in world.gate.answers:
            answer.set_result(ErrorCode.NONE)
        await settle()
        assert world.outcomes[1:] == [ErrorCode.INVALID_TXN_STATE, 0]


async def test_a_plain_batch_of_a_transactional_producer_is_not_asked_about() -> None:
    async with opened() as world:
        world.write(0, transactional=False)
        assert (world.outcomes, world.gate.asked) == ([0], [])
        world.write(1)
        await world.answer()
        world.write(2, transactional=False)
        assert world.outcomes == [0, 1, ErrorCode.INVALID_TXN_STATE]


async def test_no_coordinator_is_asked_to_add_an_internal_topic_to_a_transaction() -> None:
    async with opened() as world:
        world.hosted.internal = True
        world.write(0, version=NEW)
        await settle()
        assert world.gate.asked == []
        assert world.outcomes == [ErrorCode.INVALID_TOPIC_EXCEPTION]


async def test_a_transactional_batch_without_a_transactional_id_is_refused() -> None:
    async with opened() as world:
        world.write(0)
        await world.answer()
        batch = build_batch(
            [Record(Offset(0), TimestampMs(1), None, b"v", [])],
            producer_id=ProducerId(7),
            producer_epoch=ProducerEpoch(0),
            base_sequence=1,
            transactional=True,
        )
        produce = world.service._produce
        with pytest.raises(RefusedError) as refused:
            produce.append("t", 0, memoryview(bytearray(batch)), ACKS_ALL)
        assert refused.value.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def test_what_is_not_a_batch_is_refused_without_a_request() -> None:
    async with opened() as world:
        for data in (b"", b"nonsense", bytes(100)):
            write = TransactionalWrite("tx", "t", 0, memoryview(data), ACKS_ALL, OLD)
            world.service.append(write, world.heard)
        assert len(world.outcomes) == 3
        assert all(isinstance(each, ErrorCode) for each in world.outcomes)
        assert world.gate.asked == []


async def test_a_coordinator_that_never_answers_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transactional_produce, "_VERIFY_SECONDS_MAX", 0.01)
    async with opened() as world:
        world.write(0)
        await until(lambda: world.outcomes, "the write is answered")
        assert world.outcomes == [ErrorCode.NOT_ENOUGH_REPLICAS]
        assert world.waiting_count == 0


async def test_a_write_that_comes_while_another_is_given_up_is_verified_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transactional_produce, "_VERIFY_SECONDS_MAX", 0.01)
    async with opened() as world:
        hear = world.heard

        def write_again(outcome: AppendOutcome) -> None:
            world.heard = hear  # type: ignore[method-assign]
            hear(outcome)
            world.write(0)

        world.heard = write_again  # type: ignore[method-assign]
        world.write(0)
        await until(lambda: len(world.outcomes) >= 2, "both writes are answered")
        assert len(world.gate.asked) == 2
        assert world.waiting_count == 0


async def test_a_coordinator_that_cannot_be_asked_is_as_one_that_refuses() -> None:
    async with opened() as world:
        world.gate.refusal = RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        world.write(0)
        await settle()
        assert world.outcomes == [ErrorCode.NOT_ENOUGH_REPLICAS]
        assert world.waiting_count == 0


async def test_a_newer_epoch_is_asked_about_though_the_older_has_a_transaction_open() -> None:
    async with opened() as world:
        world.write(0)
        await world.answer()
        world.write(0, epoch=1)
        await settle()
        assert (world.outcomes, len(world.gate.asked)) == ([0], 2)
        await world.answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        assert world.outcomes[1:] == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]


async def test_a_leader_that_lost_its_place_meanwhile_appends_nothing() -> None:
    async with opened() as world:
        world.write(0)
        await settle()
        world.replica.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        await world.answer()
        assert world.outcomes == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


@pytest.mark.parametrize(
    ("code", "version", "told"),
    [
        (ErrorCode.PRODUCER_FENCED, 12, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.TRANSACTION_ABORTABLE, 10, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 11, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 12, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.NOT_COORDINATOR, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 9, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, 9, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 9, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_an_error_of_the_coordinator_is_returned_as_the_producer_knows_it(
    code: ErrorCode, version: int, told: ErrorCode
) -> None:
    assert error_for(code, version) is told
