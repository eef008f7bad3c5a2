"""One who looks at transactions, and who asks for what he has no right to."""

from collections.abc import Sequence
from typing import Final

from moldau.model.errors import ErrorCode
from moldau.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from moldau.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersTopic,
)
from moldau.wire.messages.describe_transactions import DescribeTransactionsRequest
from moldau.wire.messages.end_txn import EndTxnRequest
from moldau.wire.messages.init_producer_id import InitProducerIdRequest
from moldau.wire.messages.list_transactions import ListTransactionsRequest
from moldau.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from moldau.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from sim.clients.transactor import GROUPS, TRANSACTIONS
from sim.clients.transformer import GROUP
from sim.clients.wire import COORDINATOR_GONE, LEADER_GONE, Lost, Place
from sim.process import ClientProcess
from sim.scene import Scene

_STATES: Final = frozenset(
    {"Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"}
)
_NOBODY: Final = "nobody"
_NO_PRODUCER: Final = 1 << 60


class TransactionAdmin:
    """Sends one request after the other, to the right broker."""

    def __init__(
        self,
        scene: Scene,
        process: ClientProcess,
        names: Sequence[str],
        places: Sequence[Place],
    ) -> None:
        self._scene = scene
        self._kafka = scene.kafka(process)
        self._rng = process.rng
        self._names = list(names)
        self._places = list(places)

    async def run(self) -> None:
        requests = (
            self._describe,
            self._list,
            self._describe_producers,
            self._write_markers,
            self._commit_offsets,
            self._end,
            self._add,
            self._init,
        )
        while not self._scene.is_over:
            try:
                await self._rng.choice(requests)()
                self._scene.count("txn requests")
            except Lost:
                pass
            await self._scene.pause(self._rng, 0.5)

    def _expect(self, what: str, code: int, *expected: ErrorCode) -> None:
        """A request for a transactional id in the middle of a change is rejected first."""
        if code not in (*expected, ErrorCode.CONCURRENT_TRANSACTIONS):
            self._scene.violation(f"{what}: {ErrorCode(code).name}")

    async def _describe(self) -> None:
        name = self._rng.choice([*self._names, _NOBODY])
        answer = await self._kafka.ask_coordinator(
            TRANSACTIONS, name, DescribeTransactionsRequest(transactional_ids=[name])
        )
        (reported,) = answer.transaction_states
        if reported.error_code in COORDINATOR_GONE:
            self._kafka.forget_coordinator(TRANSACTIONS, name)
            return
        may_be = (ErrorCode.NONE, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        self._expect(f"describe {name}", reported.error_code, *may_be[name == _NOBODY :])
        if not reported.error_code and reported.transaction_state not in _STATES:
            self._scene.violation(f"{name} is {reported.transaction_state}")

    async def _list(self) -> None:
        states = self._rng.choice(([], ["Ongoing"], ["Ongoing", "Asleep"], ["Asleep"]))
        version = self._rng.randint(0, 1)
        request = ListTransactionsRequest(
            state_filters=states,
            producer_id_filters=self._rng.choice(([], [], [_NO_PRODUCER])),
            duration_filter=self._rng.choice((-1, 0, 1000)) if version else -1,
        )
        answer = await self._kafka.ask_any(request, version=version)
        if answer.error_code in COORDINATOR_GONE:
            return
        self._expect("list transactions", answer.error_code, ErrorCode.NONE)
        wanted = set(states) & _STATES
        found = {each.transaction_state for each in answer.transaction_states}
        if not found <= (_STATES if not states else wanted):
            self._scene.violation(f"asked for transactions {states}, got {sorted(found)}")
        if answer.unknown_state_filters != [state for state in states if state not in _STATES]:
            self._scene.violation(f"unknown of {states}: {answer.unknown_state_filters}")
        if request.producer_id_filters and answer.transaction_states:
            self._scene.violation("got transactions of an unknown producer")

    async def _describe_producers(self) -> None:
        place = self._rng.choice(self._places)
        topics = [DescribeProducersTopic(name=place[0], partition_indexes=[place[1]])]
        leader = await self._kafka.leader(place)
        answer = await self._kafka.ask(leader, DescribeProducersRequest(topics=topics))
        (reported,) = answer.topics[0].partitions
        if reported.error_code in LEADER_GONE:
            self._kafka.forget_leader(place)
            return
        self._expect(f"producers of {place}", reported.error_code, ErrorCode.NONE)

    async def _write_markers(self) -> None:
        """A commit is not for clients; an abort of a producer that nobody is does nothing."""
        topic, index = place = self._rng.choice(self._places)
        is_commit = self._rng.random() < 0.5
        marker = WritableTxnMarker(
            producer_id=_NO_PRODUCER,
            producer_epoch=0,
            transaction_result=is_commit,
            topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[index])],
            coordinator_epoch=0,
        )
        leader = await self._kafka.leader(place)
        answer = await self._kafka.ask(leader, WriteTxnMarkersRequest(markers=[marker]))
        (reported,) = answer.markers[0].topics[0].partitions
        if is_commit:
            self._expect(
                "a commit marker", reported.error_code, ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            )
        elif reported.error_code in LEADER_GONE:
            self._kafka.forget_leader(place)
        else:
            self._expect("a marker of an unknown producer", reported.error_code, ErrorCode.NONE)

    async def _commit_offsets(self) -> None:
        name = self._rng.choice([*self._names, _NOBODY])
        topic, index = self._rng.choice(self._places)
        partition = TxnOffsetCommitRequestPartition(
            partition_index=index, committed_offset=1 << 30, committed_metadata=None
        )
        request = TxnOffsetCommitRequest(
            transactional_id=name,
            group_id=GROUP,
            producer_id=_NO_PRODUCER,
            producer_epoch=0,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[partition])],
        )
        answer = await self._kafka.ask_coordinator(GROUPS, GROUP, request)
        (reported,) = answer.topics[0].partitions
        if reported.error_code in COORDINATOR_GONE:
            self._kafka.forget_coordinator(GROUPS, GROUP)
            return
        self._refused(f"offsets of {name}", reported.error_code)

    async def _end(self) -> None:
        name = self._rng.choice([*self._names, _NOBODY])
        request = EndTxnRequest(
            transactional_id=name,
            producer_id=_NO_PRODUCER,
            producer_epoch=0,
            committed=self._rng.random() < 0.5,
        )
        answer = await self._kafka.ask_coordinator(TRANSACTIONS, name, request)
        if answer.error_code in COORDINATOR_GONE:
            self._kafka.forget_coordinator(TRANSACTIONS, name)
            return
        self._refused(f"the end of {name}", answer.error_code)

    async def _add(self) -> None:
        name = self._rng.choice([*self._names, _NOBODY])
        topic, index = self._rng.choice([*self._places, ("missing", 0), ("__transaction_state", 0)])
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=_NO_PRODUCER,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[index])],
        )
        version = self._rng.randint(0, 3)
        answer = await self._kafka.ask_coordinator(TRANSACTIONS, name, request, version=version)
        (reported,) = answer.results_by_topic_v3_and_below[0].results_by_partition
        if reported.partition_error_code in COORDINATOR_GONE:
            self._kafka.forget_coordinator(TRANSACTIONS, name)
            return
        self._expect(
            f"{topic} into {name}",
            reported.partition_error_code,
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        )

    async def _init(self) -> None:
        """Not as one that goes on from a producer that nobody was, nor for too long."""
        name = self._rng.choice(self._names)
        is_long = self._rng.random() < 0.5
        request = InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=2_000_000_000 if is_long else 10_000,
            producer_id=-1 if is_long else _NO_PRODUCER,
            producer_epoch=-1 if is_long else 0,
        )
        answer = await self._kafka.ask_coordinator(TRANSACTIONS, name, request, version=5)
        if answer.error_code in COORDINATOR_GONE:
            self._kafka.forget_coordinator(TRANSACTIONS, name)
        elif is_long:
            code = ErrorCode.INVALID_TRANSACTION_TIMEOUT
            self._expect(f"{name} for too long", answer.error_code, code)
        elif answer.error_code:
            self._expect(f"{name} as another", answer.error_code, ErrorCode.PRODUCER_FENCED)

    def _refused(self, what: str, code: int) -> None:
        self._expect(what, code, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
