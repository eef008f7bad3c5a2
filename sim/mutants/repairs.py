"""Repairs that were made here, taken back: each of these lost something once, or stood still."""

from collections.abc import Iterable, Iterator
from typing import Any

from moldau.control import metadata_store
from moldau.control.metadata_store import MetadataStore
from moldau.data.partitions import Partitions
from moldau.groups.offsets import GroupOffsets
from moldau.groups.offsets import _is_old as is_old
from moldau.leases import decide as queue_decide
from moldau.leases.results import Refusal
from moldau.metadata.snapshot import decode_image
from moldau.model.errors import ErrorCode
from moldau.model.ids import BrokerId, PartitionIndex, TopicId, TopicPartition
from moldau.raft.core import RaftCore
from moldau.raft.leader import Leader
from moldau.raft.progress import Progress
from moldau.server import membership
from moldau.transactions import decide as transaction_decide
from sim.mutants import mutant
from sim.mutants.cores import StandsWithAnyLog, VotesWithAnyLog
from sim.mutants.raft import ELECTIONS, part


class AcksTheUnstored(RaftCore):
    """An answer that waits for the vote is sent, though there was no room for what it is about."""

    def drop_delayed_acks(self) -> None:
        pass


class KeepsSending(Leader):
    """A snapshot replaces an append that waits for room, and the wait never ends."""

    def _send_snapshot(self, peer: BrokerId, progress: Progress) -> None:
        was_sending = progress.is_sending
        super()._send_snapshot(peer, progress)
        progress.is_sending = was_sending


def _leave(self: Partitions, topic: Any, index: PartitionIndex) -> None:
    self._drop_replica(topic, index, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _forget_logs(
    self: Partitions, removed: Iterable[tuple[str, TopicId, PartitionIndex]], image: Any
) -> None:
    for name, topic_id, index in removed:
        if not self._is_open(name, topic_id, index):
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
    image, left = self._with_uncommitted()
    self._earlier_replicas = {*left, *metadata_store._replicas_of(image, self._me)}


def _bootstrap_again(
    config: Any, storage: Any, machine: Any, secret: Any, may_bootstrap: bool
) -> Any:
    return _bootstrap(config, storage, machine, secret, may_bootstrap=True)


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


def _call_settled(draft: Any, checksum: int, token: Any, member: str, now: Any) -> Any:
    answer = _check_token(draft, checksum, token, member, now)
    return Refusal.SETTLED if answer is Refusal.DEAD else answer


_load = MetadataStore._load
_bootstrap = membership._bootstrap
_decide_end = transaction_decide._decide_end_v2
_check_token = queue_decide._check_token


MUTANTS = (
    mutant(
        "VotesWithLostLog",
        "raft",
        "a broker that lost its log votes again as soon as an old entry names it a voter",
        {"isolate": 12.0},
        part(VotesWithAnyLog),
        part(StandsWithAnyLog),
        operator=True,
    ),
    mutant(
        "AcksTheUnstored",
        "raft",
        "an answer that waits for the vote is sent, though there was no room for what it is about",
        {"full-disk": 4.0, "isolate": 6.0, "kill": 6.0},
        part(AcksTheUnstored),
        admin=True,
        knobs=frozenset({"tight"}),
    ),
    mutant(
        "KeepsSending",
        "raft",
        "a follower whose snapshot took the place of a waiting append is never sent to again",
        None,
        part(KeepsSending),
        scenarios=("full_link",),
    ),
    mutant(
        "DropsWhatCameBack",
        "data",
        "a partition that has moved away and come back is dropped by what an old image says",
        ELECTIONS,
        (Partitions, "_drop_if_inactive", _leave),
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
        "BootstrapsAgain",
        "server",
        "a broker that lost its disk bootstraps its cluster a second time",
        {},
        (membership, "_bootstrap", _bootstrap_again),
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
        (transaction_decide, "_decide_end_v2", _fence_early),
        transactional=2,
    ),
    mutant(
        "CallsDeadLettersSettled",
        "groups",
        "a late ack of a dead letter gets that the message is settled",
        {"break": 10.0},
        (queue_decide, "_check_token", _call_settled),
        queue_workers=3,
        queue_senders=2,
    ),
)
