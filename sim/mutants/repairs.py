"""Repairs that were made here, taken back: each of these lost something once, or stood still."""

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from moldau.control import metadata_store
from moldau.control.metadata_store import MetadataStore
from moldau.data.partitions import Partitions
from moldau.groups.offsets import GroupOffsets
from moldau.groups.offsets import _is_old as is_old
from moldau.groups.queue import decide as queue_decide
from moldau.groups.queue.results import Refusal
from moldau.metadata.snapshot import decode_image
from moldau.model.errors import ErrorCode
from moldau.model.ids import BrokerId, PartitionIndex, TopicId, TopicPartition
from moldau.raft.core import RaftCore
from moldau.raft.messages import VoteRequest
from moldau.raft.progress import Progress
from moldau.replica import driver
from moldau.server import membership
from moldau.transactions import decide as transaction_decide
from sim.mutants import mutant
from sim.mutants.raft import ELECTIONS


class VotesWithLostLog(RaftCore):
    """A broker that lost its log votes again as soon as an old entry names it a voter."""

    def _is_asked(self, message: VoteRequest) -> bool:
        return True

    @property
    def is_voter(self) -> bool:
        return self.me in self.members.voters


class AcksTheUnstored(RaftCore):
    """An answer that waits for the vote is sent, though there was no room for what it is about."""

    def _on_append_failed(self) -> None:
        held = self._held
        super()._on_append_failed()
        self._held = held


class KeepsSending(RaftCore):
    """A snapshot takes the place of an Append that waits for room, which is waited for for ever."""

    def _send_snapshot(self, peer: BrokerId, progress: Progress) -> None:
        was_sending = progress.is_sending
        super()._send_snapshot(peer, progress)
        progress.is_sending = was_sending


def _leave(self: Partitions, topic: Any, index: PartitionIndex) -> None:
    self._let_go(topic, index, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _forget_logs(
    self: Partitions, gone: Iterable[tuple[str, TopicId, PartitionIndex]], image: Any
) -> None:
    for name, topic_id, index in gone:
        hosted = self._hosted.get((name, index))
        if hosted is None or hosted.replica.topic_id != topic_id:
            self._drop_log(name, topic_id, index)


async def _believe(self: MetadataStore) -> None:
    pass


def _load_any(self: MetadataStore) -> None:
    log = self._replica.log
    begins = log.start_offset
    snapshot = log.load_snapshot()
    if snapshot is None or snapshot[0] >= begins:
        _load(self)
        return
    self._applied, self.image = snapshot[0], decode_image(snapshot[1])
    self._settled = self._applied
    image, left = self._look_ahead()
    self._once_held = {*left, *metadata_store._held(image, self._me)}


def _found_again(config: Any, storage: Any, machine: Any) -> Any:
    return _found(replace(config, bootstrap=True), storage, machine)


def _expired(self: GroupOffsets, group: Any) -> Iterator[TopicPartition]:
    now_ms = self.runtime.wall_ms()
    before = now_ms - self.runtime.config.offsets_retention_ms
    for partition, offset in group.offsets.items():
        if not group.members and is_old(group, offset, before, now_ms):
            yield partition


def _fence_early(stored: Any, event: Any, now_ms: Any) -> Any:
    if not transaction_decide._is_repeated_end(stored, event):
        if event.producer_id != stored.producer_id:
            return transaction_decide.UNMAPPED
        if event.producer_epoch != stored.producer_epoch or stored.state.is_prepared:
            return transaction_decide.FENCED
    return _decide_end(stored, event, now_ms)


def _call_settled(draft: Any, of_queue: int, token: Any, member: str, now: Any) -> Any:
    answer = _judge(draft, of_queue, token, member, now)
    return Refusal.SETTLED if answer is Refusal.DEAD else answer


_load = MetadataStore._load
_found = membership._found
_decide_end = transaction_decide._decide_rising_end
_judge = queue_decide._judge


MUTANTS = (
    mutant(
        "VotesWithLostLog",
        "raft",
        "a broker that lost its log votes again as soon as an old entry names it a voter",
        {"isolate": 12.0},
        (driver, "RaftCore", VotesWithLostLog),
        operator=True,
    ),
    mutant(
        "AcksTheUnstored",
        "raft",
        "an answer that waits for the vote is sent, though there was no room for what it is about",
        {"full-disk": 4.0, "isolate": 6.0, "kill": 6.0},
        (driver, "RaftCore", AcksTheUnstored),
        admin=True,
        knobs=frozenset({"tight"}),
    ),
    mutant(
        "KeepsSending",
        "raft",
        "a follower whose snapshot took the place of a waiting append is never sent to again",
        {"isolate": 3.0, "stop": 4.0},
        (driver, "RaftCore", KeepsSending),
        # What comes at the last reconnection is not mended by the next.
        seconds=12.0,
        admin=True,
        producers=4,
        keyed=2,
        partitions=3,
        knobs=frozenset({"tight", "far", "sends"}),
        scenarios=("full_link",),
    ),
    mutant(
        "DropsWhatCameBack",
        "data",
        "a partition that has moved away and come back is dropped by what an old image says",
        ELECTIONS,
        (Partitions, "_leave", _leave),
        (Partitions, "forget_logs", _forget_logs),
        (MetadataStore, "_catch_up", _believe),
        admin=True,
        brokers=4,
    ),
    mutant(
        "TakesOlderSnapshots",
        "control",
        "where the newest snapshot of the metadata is rotten, the one before is taken",
        {"stop": 5.0},
        (MetadataStore, "_load", _load_any),
        operator=True,
        admin=True,
        knobs=frozenset({"tight"}),
    ),
    mutant(
        "FoundsAgain",
        "server",
        "a broker that lost its disk founds its cluster a second time",
        {},
        (membership, "_found", _found_again),
        operator=True,
    ),
    mutant(
        "ExpiresThePending",
        "groups",
        "an old offset is removed although an open transaction replaces it",
        {"kill": 15.0},
        (GroupOffsets, "expired", _expired),
        savers=2,
        knobs=frozenset({"expires"}),
    ),
    mutant(
        "FencesTheNextEnd",
        "transactions",
        "an abort right after a commit is fenced, as long as the markers are not written",
        {"stall": 5.0},
        (transaction_decide, "_decide_rising_end", _fence_early),
        transactional=2,
    ),
    mutant(
        "CallsDeadLettersSettled",
        "groups",
        "a late ack of a dead letter is told that the message is settled",
        {"break": 10.0},
        (queue_decide, "_judge", _call_settled),
        queue_workers=3,
        queue_senders=2,
    ),
)
