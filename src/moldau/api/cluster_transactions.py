"""Transactions of the whole cluster: their coordinators list and abort them, on any broker.

A transaction hangs if it is open for longer than its timeout, after which its coordinator aborts
it; or if it is open in a partition and no coordinator knows it, which holds up all who read
committed records. The latter is said only if the leader of every partition of their state was
asked: brokers that are dead lead none.
"""

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from heapq import nsmallest
from itertools import islice
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from moldau.api.asking import ask_each
from moldau.control.cluster_service import ClusterService
from moldau.coordination.transaction_service import TransactionService
from moldau.data.partitions import HostedPartition, Partitions
from moldau.metadata.image import TRANSACTION_STATE_TOPIC
from moldau.metadata.leaders import NO_LEADER_ID
from moldau.model.clock import Clock
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, PartitionIndex, ProducerEpoch, ProducerId, TopicPartition
from moldau.model.malformed import MALFORMED
from moldau.net.peers.caller import PeerCaller, decode_request
from moldau.net.peers.methods import PeerMethod
from moldau.transactions.records import TransactionState
from moldau.transactions.results import DescribedTransaction

log = logging.getLogger(__name__)

_CALL_SECONDS_MAX: Final = 3.0
_ABORT_SECONDS_MAX: Final = 8.0
_ABORT_MARGIN_SECONDS: Final = 2.0
_PAUSE_SECONDS: Final = 0.05
_PARTITIONS_PER_TRANSACTION_MAX: Final = 1_000
_PARTITIONS_PER_REPLY_MAX: Final = 50_000
_OPEN_PER_BROKER_MAX: Final = 10_000
_NAMES_PER_REPLY_MAX: Final = 10_000
_NAME_BYTES_PER_REPLY_MAX: Final = 1024 * 1024
_PER_TURN: Final = 500
"""Partitions that are looked at in one turn of the event loop."""
HANGING_MAX: Final = 1_000
"""In a reply."""
_OPEN_STATES: Final = frozenset(
    {
        TransactionState.ONGOING.value,
        TransactionState.PREPARE_COMMIT.value,
        TransactionState.PREPARE_ABORT.value,
    }
)

_COMMITTED_STATES: Final = frozenset(
    {TransactionState.PREPARE_COMMIT.value, TransactionState.COMPLETE_COMMIT.value}
)
_ENDING: Final = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.PRODUCER_FENCED})

A = TypeVar("A")


class TransactionListing(Struct, frozen=True, kw_only=True, array_like=True):
    """A transactional id, from its coordinator."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    age_ms: int | None
    """None: it has no open transaction."""
    timeout_ms: int
    partitions: list[TopicPartition]
    """The first ones."""
    partition_count: int

    @property
    def is_hanging(self) -> bool:
        return self.age_ms is not None and self.age_ms > self.timeout_ms


class OpenProducer(NamedTuple):
    """A transaction that is open in a partition, from its leader."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    first_offset: int
    age_ms: int | None
    """Since its last record here."""


class TransactionPage(Struct, frozen=True, kw_only=True):
    """Each with its coordinator; `silent` did not respond: what they coordinate is missing."""

    transactions: list[tuple[TransactionListing, BrokerId]]
    next: str | None
    silent: list[BrokerId]


class AbortedTransaction(Struct, frozen=True, kw_only=True, array_like=True):
    """`state` before; it is aborted only if it was open."""

    state: str
    is_aborted: bool
    producer_id: int
    producer_epoch: int
    partitions: list[TopicPartition]


class _Wanted(Struct, frozen=True, kw_only=True, array_like=True):
    """Empty filters: all. With `names`, these; `only_names`: they are not described."""

    limit: int
    after: str | None = None
    search: str = ""
    states: tuple[str, ...] = ()
    producers: tuple[int, ...] = ()
    names: tuple[str, ...] | None = None
    only_names: bool = False


class _Listed(Struct, frozen=True, kw_only=True, array_like=True):
    transactions: list[TransactionListing]
    names: list[str]
    """In order, if only they were wanted."""
    has_more: bool
    coordinated: list[int]


class _Hanging(Struct, frozen=True, kw_only=True, array_like=True):
    topic: str
    partition: int
    producer_id: int
    producer_epoch: int


_decode_wanted: Final = msgspec.msgpack.Decoder(_Wanted).decode
_decode_listed: Final = msgspec.msgpack.Decoder(_Listed).decode
_decode_open_wanted: Final = msgspec.msgpack.Decoder(list[TopicPartition] | None).decode
_decode_open: Final = msgspec.msgpack.Decoder(list[OpenProducer]).decode
_decode_name: Final = msgspec.msgpack.Decoder(str).decode
_decode_aborted: Final = msgspec.msgpack.Decoder(AbortedTransaction).decode
_decode_hanging: Final = msgspec.msgpack.Decoder(_Hanging).decode


class ClusterTransactions:
    """Asks the coordinators and leaders, and responds for this broker."""

    def __init__(
        self,
        *,
        me: BrokerId,
        clock: Clock,
        cluster: ClusterService,
        partitions: Partitions,
        transactions: TransactionService,
        caller: PeerCaller,
    ) -> None:
        self._me = me
        self._clock = clock
        self._cluster = cluster
        self._partitions = partitions
        self._transactions = transactions
        self._caller = caller

    # ---- lists

    async def page(
        self,
        sees: Callable[[str], bool],
        *,
        limit: int,
        after: str | None = None,
        search: str = "",
        state: str | None = None,
    ) -> TransactionPage:
        """Transactional ids by name, of those that the client `sees`; `search` is a part of the
        name, in any case."""
        states = () if state is None else (state,)
        names, has_more, silent = await self._names(
            sees, _Wanted(limit=limit, after=after, search=search.lower(), states=states)
        )
        if not names:
            return TransactionPage(transactions=[], next=None, silent=sorted(silent))
        replies, unheard = await self._list_all(_Wanted(limit=limit, names=tuple(names)))
        # While a partition changes its leader, two brokers may list the same id.
        by_name = {
            each.transactional_id: (each, broker)
            for broker, one in replies.items()
            for each in one.transactions
            if not states or each.state in states
        }
        return TransactionPage(
            # Without those that are gone meanwhile.
            transactions=[by_name[name] for name in names if name in by_name],
            next=names[-1] if has_more else None,
            silent=sorted({*silent, *unheard}),
        )

    async def _names(
        self, sees: Callable[[str], bool], wanted: _Wanted
    ) -> tuple[list[str], bool, set[BrokerId]]:
        """Up to `limit`, whether there are more, and the brokers that did not respond.

        What the client does not see may not show in it: it may not even end a page.
        """
        found: list[str] = []
        silent: set[BrokerId] = set()
        after = wanted.after
        while True:
            # One more says whether there is another page. Who does not see those, sees few.
            count = wanted.limit + 1 if after == wanted.after else _NAMES_PER_REPLY_MAX
            replies, unheard = await self._list_all(
                replace(wanted, limit=count, after=after, only_names=True)
            )
            silent.update(unheard)
            # Behind the end of a reply that goes on, names of that broker are missing.
            ends = [one.names[-1] for one in replies.values() if one.has_more and one.names]
            end = min(ends, default=None)
            names = sorted({name for one in replies.values() for name in one.names})
            for number, name in enumerate(names, 1):
                if end is not None and name > end:
                    break
                if sees(name):
                    found.append(name)
                    if len(found) > wanted.limit:
                        return found[: wanted.limit], True, silent
                if number % _PER_TURN == 0:
                    await asyncio.sleep(0)
            if end is None:
                return found, False, silent
            after = end

    async def hanging(self) -> tuple[list[OpenProducer], list[BrokerId]]:
        """What is open in partitions and no coordinator knows; and the brokers that did not
        respond. Empty, if a coordinator did not."""
        opened, silent = await self._open(None)
        if not opened:
            return [], silent
        producers = tuple(sorted({one.producer_id for one in opened}))
        # Asked after the leaders: a transaction is known before it writes to a partition.
        replies, unheard = await self._list_all(_Wanted(limit=len(producers), producers=producers))
        silent = sorted({*silent, *unheard})
        if not self._have_all_responded(replies, unheard):
            return [], silent
        known: set[tuple[int, TopicPartition]] = set()
        known_whole: set[int] = set()
        for listed in replies.values():
            for each in listed.transactions:
                if each.state in _OPEN_STATES:
                    known.update((each.producer_id, place) for place in each.partitions)
                    if each.partition_count > len(each.partitions):
                        known_whole.add(each.producer_id)
        suspects = [
            one
            for one in opened
            if one.producer_id not in known_whole and (one.producer_id, _place(one)) not in known
        ]
        if not suspects:
            return [], silent
        # What has ended meanwhile was known to its coordinator until then.
        still = {
            (_place(one), one.producer_id, one.first_offset): one
            for one in (await self._open([_place(one) for one in suspects]))[0]
        }
        keys = [(_place(one), one.producer_id, one.first_offset) for one in suspects]
        return [still[key] for key in sorted(keys) if key in still], silent

    def _have_all_responded(
        self, replies: Mapping[BrokerId, _Listed], unheard: Iterable[BrokerId]
    ) -> bool:
        """All who coordinate transactions. One that is alive and silent may have become leader just
        now, before this broker learnt of it."""
        if not self._cluster.alive.isdisjoint(unheard):
            return False
        topic = self._cluster.image.topic(TRANSACTION_STATE_TOPIC)
        if topic is None:
            return True
        for index in range(len(topic.partitions)):
            reply = replies.get(self._cluster.leader_of(topic, index).broker)
            if reply is None or index not in reply.coordinated:
                return False
        return True

    async def _list_all(self, wanted: _Wanted) -> tuple[dict[BrokerId, _Listed], list[BrokerId]]:
        replies = await ask_each(
            self._caller,
            PeerMethod.TRANSACTIONS,
            dict.fromkeys(self._alive, wanted),
            _decode_listed,
            _CALL_SECONDS_MAX,
            me=self._me,
            here=self._list_here,
        )
        return replies, self._silent(replies)

    async def _open(
        self, places: list[TopicPartition] | None
    ) -> tuple[list[OpenProducer], list[BrokerId]]:
        replies = await ask_each(
            self._caller,
            PeerMethod.OPEN_PRODUCERS,
            dict.fromkeys(self._alive, places),
            _decode_open,
            _CALL_SECONDS_MAX,
            me=self._me,
            here=self._open_here,
        )
        return [one for reply in replies.values() for one in reply], self._silent(replies)

    @property
    def _alive(self) -> list[BrokerId]:
        return [one for one in self._cluster.image.brokers if one in self._cluster.alive]

    def _silent(self, replies: Container[BrokerId]) -> list[BrokerId]:
        return sorted(one for one in self._cluster.image.brokers if one not in replies)

    # ---- this broker

    async def _list_here(self, wanted: _Wanted) -> _Listed:
        """Raises RefusedError."""
        error, listed = self._transactions.list_transactions(wanted.states, wanted.producers, -1)
        if error is not ErrorCode.NONE:
            raise RefusedError(error, "a coordinator is loading its transactions")
        coordinated = self._transactions.coordinated()
        await asyncio.sleep(0)
        after, search = wanted.after, wanted.search
        names = (
            one.transactional_id
            for one in listed
            if (after is None or one.transactional_id > after)
            and (not search or search in one.transactional_id.lower())
        )
        first = list(wanted.names or ()) or nsmallest(wanted.limit + 1, names)
        await asyncio.sleep(0)
        if wanted.only_names:
            shown = list(_fitting(first[: wanted.limit]))
            return _Listed(
                transactions=[],
                names=shown,
                has_more=len(first) > len(shown),
                coordinated=coordinated,
            )
        found: list[TransactionListing] = []
        room = _PARTITIONS_PER_REPLY_MAX
        for number, name in enumerate(first[: wanted.limit], 1):
            if (view := self._view(name, room)) is not None:
                room -= len(view.partitions)
                found.append(view)
            if number % _PER_TURN == 0:
                await asyncio.sleep(0)
        return _Listed(
            transactions=found,
            names=[],
            has_more=len(first) > wanted.limit,
            coordinated=coordinated,
        )

    def _view(self, name: str, room: int) -> TransactionListing | None:
        found = self._transactions.describe(name)
        if found.error is not ErrorCode.NONE:
            # It has expired, or another broker coordinates it now.
            return None
        is_open = found.state in _OPEN_STATES and found.started_at >= 0
        count_max = min(room, _PARTITIONS_PER_TRANSACTION_MAX)
        return TransactionListing(
            transactional_id=name,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            state=found.state,
            age_ms=max(0, self._clock.wall_ms() - found.started_at) if is_open else None,
            timeout_ms=found.timeout_ms,
            partitions=nsmallest(count_max, found.partitions),
            partition_count=len(found.partitions),
        )

    async def _open_here(self, places: list[TopicPartition] | None) -> list[OpenProducer]:
        hosts: Iterable[HostedPartition]
        if places is None:
            hosts = list(self._partitions)
        else:
            found = (self._partitions.get(*place) for place in places)
            hosts = [hosted for hosted in found if hosted is not None]
        opened: list[OpenProducer] = []
        now = self._clock.wall_ms()
        for number, hosted in enumerate(hosts, 1):
            replica = hosted.replica
            if replica.is_leader and replica.is_ready and replica.producers.open:
                left = _OPEN_PER_BROKER_MAX - len(opened)
                for first, producer in islice(list(replica.producers.open.items()), left):
                    state = replica.producers.get(producer)
                    if state is None:
                        continue
                    last = state.batches[-1].timestamp if state.batches else state.seen_at
                    topic, index = replica.partition
                    age_ms = max(0, now - last) if last >= 0 else None
                    opened.append(OpenProducer(topic, index, producer, state.epoch, first, age_ms))
            if number % _PER_TURN == 0:
                await asyncio.sleep(0)
        return opened

    # ---- abort

    async def abort(self, transactional_id: str) -> AbortedTransaction:
        """Abort the open transaction of an id, and fence its producer, as a new producer with the
        same id would. Raises RefusedError."""
        if self._cluster.image.topic(TRANSACTION_STATE_TOPIC) is None:
            raise _unknown(transactional_id)
        broker = await self._transactions.find_coordinator(transactional_id)
        if broker == self._me:
            return await self._abort_here(transactional_id)
        reply = await self._caller.call(
            broker,
            PeerMethod.ABORT_TRANSACTION,
            msgspec.msgpack.encode(transactional_id),
            _ABORT_SECONDS_MAX + _ABORT_MARGIN_SECONDS,
        )
        return _decoded(_decode_aborted, reply)

    async def _abort_here(self, name: str) -> AbortedTransaction:
        before = self._transactions.describe(name)
        if before.error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise _unknown(name)
        if before.error is not ErrorCode.NONE:
            raise RefusedError(before.error, f"the coordinator of '{name}' is not ready: retry")
        is_open = before.state == TransactionState.ONGOING.value
        return AbortedTransaction(
            state=before.state,
            is_aborted=is_open and await self._abort_open(name, before),
            producer_id=before.producer_id,
            producer_epoch=before.producer_epoch,
            partitions=nsmallest(_PARTITIONS_PER_TRANSACTION_MAX, before.partitions),
        )

    async def _abort_open(self, name: str, before: DescribedTransaction) -> bool:
        """Returns once it has ended: False, if its producer committed it just before.

        The epoch that was seen is named, and what is open is looked at each time: a producer that
        began again meanwhile has another transaction, which nobody wants to abort.
        """
        deadline = self._clock.monotonic() + _ABORT_SECONDS_MAX
        is_committed = False
        while True:
            now = self._transactions.describe(name)
            error = now.error
            if error is ErrorCode.NONE and _open_as(now) == _open_as(before):
                result = await self._transactions.init_producer(
                    name,
                    before.timeout_ms,
                    ProducerId(before.producer_id),
                    ProducerEpoch(before.producer_epoch),
                )
                if result.error is ErrorCode.NONE:
                    # Nothing was open any more.
                    return False
                # The markers are being written; or the epoch moved on, as a rule by this abort.
                if result.error not in _ENDING:
                    error = result.error
            elif error is ErrorCode.NONE:
                is_committed |= now.state in _COMMITTED_STATES
                if now.state not in _OPEN_STATES or now.state == TransactionState.ONGOING.value:
                    return not is_committed
            if error is ErrorCode.NONE and self._clock.monotonic() > deadline:
                error = ErrorCode.CONCURRENT_TRANSACTIONS
            if error is not ErrorCode.NONE:
                raise RefusedError(
                    error, f"the transaction of '{name}' could not be aborted: retry"
                )
            await asyncio.sleep(_PAUSE_SECONDS)

    async def abort_hanging(
        self, place: TopicPartition, producer_id: int, producer_epoch: int
    ) -> None:
        """Abort a transaction in a partition that no coordinator knows. Raises RefusedError."""
        found, silent = await self.hanging()
        if not any(
            _place(one) == place
            and (one.producer_id, one.producer_epoch) == (producer_id, producer_epoch)
            for one in found
        ):
            why = "; not all brokers responded: retry" if silent else ""
            raise RefusedError(
                ErrorCode.RESOURCE_NOT_FOUND,
                f"Producer {producer_id} in epoch {producer_epoch} has no hanging transaction in "
                f"{place.topic}-{place.partition}{why}",
            )
        topic = self._cluster.image.topic(place.topic)
        leader = self._me
        if topic is not None:
            leader = self._cluster.leader_of(topic, place.partition).broker
        if leader == NO_LEADER_ID:
            raise RefusedError(ErrorCode.LEADER_NOT_AVAILABLE, f"{place} has no leader")
        order = _Hanging(
            topic=place.topic,
            partition=place.partition,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
        if leader == self._me:
            await self._abort_hanging_here(order)
        else:
            payload = msgspec.msgpack.encode(order)
            await self._caller.call(leader, PeerMethod.ABORT_HANGING, payload, _ABORT_SECONDS_MAX)

    async def _abort_hanging_here(self, order: _Hanging) -> None:
        place = TopicPartition(order.topic, PartitionIndex(order.partition))
        error = await self._transactions.abort_hanging(
            place, ProducerId(order.producer_id), ProducerEpoch(order.producer_epoch)
        )
        if error is not ErrorCode.NONE:
            raise RefusedError(error, f"The transaction in {place} could not be aborted: retry")

    # ---- for the peers

    async def on_list_request(self, sender: BrokerId, payload: bytes) -> bytes:
        return msgspec.msgpack.encode(
            await self._list_here(decode_request(_decode_wanted, payload))
        )

    async def on_open_request(self, sender: BrokerId, payload: bytes) -> bytes:
        places = decode_request(_decode_open_wanted, payload)
        return msgspec.msgpack.encode(await self._open_here(places))

    async def on_abort_request(self, sender: BrokerId, payload: bytes) -> bytes:
        name = decode_request(_decode_name, payload)
        return msgspec.msgpack.encode(await self._abort_here(name))

    async def on_abort_hanging_request(self, sender: BrokerId, payload: bytes) -> bytes:
        await self._abort_hanging_here(decode_request(_decode_hanging, payload))
        return b""


def _fitting(names: Iterable[str]) -> Iterator[str]:
    """The first ones, that fit into a reply; at least one."""
    size = 0
    for name in names:
        size += len(name)
        if size > _NAME_BYTES_PER_REPLY_MAX and size > len(name):
            return
        yield name


def _place(one: OpenProducer) -> TopicPartition:
    return TopicPartition(one.topic, PartitionIndex(one.partition))


def _open_as(one: DescribedTransaction) -> tuple[str, int, int, int]:
    """What another transaction of the same id differs in."""
    return one.state, one.producer_id, one.producer_epoch, one.started_at


def _unknown(name: str) -> RefusedError:
    return RefusedError(
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"Transactional id '{name}' is unknown"
    )


def _decoded(decode: Callable[[bytes], A], reply: bytes) -> A:
    try:
        return decode(reply)
    except MALFORMED as error:
        raise RefusedError(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"invalid response of the coordinator: {error}"
        ) from None
