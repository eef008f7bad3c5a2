"""Decides, from the surveys of all surviving brokers, what each has to change. Pure.

One survivor's metadata log becomes that of the cluster: the best one, as elections compare logs, so
it has everything that any survivor knows to be committed. So has the replica that is chosen for a
partition without a majority. What only lost brokers had is lost, and nobody can say what it was.

The cluster gets another id, with a new random number. Lost brokers that come back have the old id,
and so every broker with the new one refuses them.
"""

import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from msgspec import Struct

from moldau.metadata.image import BrokerState
from moldau.metadata.records import (
    BrokerStateSet,
    ClusterCreated,
    DesiredReplicasReached,
    MetadataRecord,
    ProducerIdsAllocated,
)
from moldau.model.cluster_ids import another_cluster_id
from moldau.model.errors import MoldauError
from moldau.model.ids import (
    NO_EPOCH,
    BrokerId,
    Epoch,
    PartitionIndex,
    ProducerId,
    RaftIndex,
    TimestampMs,
    TopicId,
)
from moldau.raft.membership import Members
from moldau.replica.only_voter import Survivor, forced_epoch
from moldau.server.recovery.survey import (
    NOBODY,
    KnownPartition,
    KnownTopic,
    Survey,
    SurveyedLog,
    survey_digest,
)

PLAN_FORMAT: Final = 1
_PRODUCER_IDS_SKIPPED: Final = 1_000_000_000
"""The lost metadata may have allocated more than the survivors know: no id is used twice."""


class PlanError(MoldauError):
    """There is no plan for these surveys; the hint says what to do instead."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ForcedLog(Struct, frozen=True, kw_only=True):
    """A log that gets its broker as the only voter."""

    topic: str = ""
    """Empty: the metadata."""
    topic_id: str = ""
    partition: PartitionIndex = PartitionIndex(0)
    internal: bool = True
    epoch: Epoch
    """Of the entry that says so."""
    end_index: RaftIndex
    """Where the log ends before that entry; 0 also if there is no log yet."""
    is_new: bool = False
    """No replica survived: it begins empty."""


class PlannedReplicas(Struct, frozen=True, kw_only=True):
    """Replicas that the metadata must have from now on."""

    topic_id: str
    partition: PartitionIndex
    replicas: tuple[BrokerId, ...]
    desired_version: int


class PlannedSurvivor(Struct, frozen=True, kw_only=True):
    """What is done on one survivor."""

    broker_id: BrokerId
    directory_id: str
    digest: str
    """Of its survey: its directory must not have changed since."""
    forced: tuple[ForcedLog, ...] = ()


class TopicOutcome(Struct, frozen=True, kw_only=True):
    """What becomes of a topic, by partition."""

    topic: str
    whole: tuple[int, ...] = ()
    """A majority of the replicas is there: nothing is lost."""
    recovered: tuple[int, ...] = ()
    """From one replica: what only lost brokers had is lost."""
    empty: tuple[int, ...] = ()
    """No replica is there: all records are lost, and the partition begins again."""
    damaged: tuple[int, ...] = ()
    """The only replicas that are there are corrupt: the partition stays offline."""


class Plan(Struct, frozen=True, kw_only=True):
    """The same file for all survivors."""

    format: int = PLAN_FORMAT
    plan_id: str
    made_ms: TimestampMs
    cluster_id: str
    new_cluster_id: str
    lost: tuple[BrokerId, ...]
    metadata_broker: BrokerId
    """Whose metadata the cluster continues with."""
    metadata: ForcedLog
    replicas: tuple[PlannedReplicas, ...]
    next_producer_id: ProducerId
    survivors: tuple[PlannedSurvivor, ...]
    topics: tuple[TopicOutcome, ...]
    warnings: tuple[str, ...] = ()

    def survivor(self, broker_id: int) -> PlannedSurvivor | None:
        return next((one for one in self.survivors if one.broker_id == broker_id), None)

    def records(self) -> list[MetadataRecord]:
        """What is added to the metadata."""
        drained = [BrokerStateSet(broker_id=lost, state=BrokerState.DRAINING) for lost in self.lost]
        moved = [
            DesiredReplicasReached(
                topic_id=TopicId(bytes.fromhex(one.topic_id)),
                partition=one.partition,
                replicas=one.replicas,
                desired_version=one.desired_version,
            )
            for one in self.replicas
        ]
        return [
            ClusterCreated(cluster_id=self.new_cluster_id),
            ProducerIdsAllocated(first=self.next_producer_id, count=_PRODUCER_IDS_SKIPPED),
            *drained,
            *moved,
        ]


def make_plan(
    surveys: Sequence[Survey], lost: Collection[BrokerId], *, chance: uuid.UUID, now_ms: TimestampMs
) -> Plan:
    """`chance` is random. Raises PlanError."""
    _check_one_cluster(surveys)
    chosen = max(surveys, key=lambda one: _rank(_metadata_of(one)))
    metadata = _metadata_of(chosen)
    _check_brokers(surveys, lost, chosen)
    _check_majority(surveys, metadata)
    epochs = [_metadata_of(one).known_epoch for one in surveys]
    topics = _Topics(surveys, lost, chosen)
    for topic in chosen.topics:
        topics.decide(topic)
    return Plan(
        plan_id=chance.hex,
        made_ms=now_ms,
        cluster_id=chosen.cluster_id,
        new_cluster_id=another_cluster_id(chosen.cluster_id, chance),
        lost=tuple(sorted(lost)),
        metadata_broker=chosen.broker_id,
        metadata=ForcedLog(epoch=forced_epoch(epochs), end_index=metadata.end_index),
        replicas=tuple(topics.replicas),
        next_producer_id=chosen.next_producer_id,
        survivors=tuple(
            PlannedSurvivor(
                broker_id=one.broker_id,
                directory_id=one.directory_id,
                digest=survey_digest(one),
                forced=tuple(topics.forced[one.broker_id]),
            )
            for one in sorted(surveys, key=lambda one: one.broker_id)
        ),
        topics=tuple(topics.outcomes),
        warnings=tuple(_warnings(surveys)),
    )


def _metadata_of(survey: Survey) -> Survivor:
    return survey.metadata.survivor(survey.broker_id, NOBODY)


def _rank(survivor: Survivor) -> tuple[tuple[int, int], bool, int]:
    """The largest has the best log; of equal logs that of a voter, then of the lowest id."""
    return survivor.position, survivor.is_voter, -survivor.broker


def _check_one_cluster(surveys: Sequence[Survey]) -> None:
    if not surveys:
        raise PlanError("no survey was given", "make one of each broker that is left: collect")
    first = surveys[0]
    seen: set[BrokerId] = set()
    for one in surveys:
        if one.cluster_id != first.cluster_id:
            raise PlanError(
                f"broker {first.broker_id} belongs to cluster {first.cluster_id}, and broker "
                f"{one.broker_id} to {one.cluster_id}",
                "give the files of one cluster only; if a plan was applied to some of its brokers "
                "before, apply the same plan to the others",
            )
        if one.broker_id in seen:
            raise PlanError(f"there are two files of broker {one.broker_id}", "give the newer one")
        seen.add(one.broker_id)


def _check_brokers(surveys: Sequence[Survey], lost: Collection[BrokerId], chosen: Survey) -> None:
    """Every registered broker is a survivor or lost, and none is both."""
    registered = {one.id: one for one in chosen.brokers}
    for one in surveys:
        if one.broker_id in lost:
            raise PlanError(
                f"broker {one.broker_id} is named as lost, but there is a file of it",
                "leave it out of --lost: its data is there, and is needed",
            )
        known = registered.get(one.broker_id)
        if known is None or known.directory_id != one.directory_id:
            raise PlanError(
                f"the best metadata that is left, of broker {chosen.broker_id}, does not know "
                f"broker {one.broker_id} with this data directory",
                "leave its file out, and start this broker later with an empty directory",
            )
    for number in sorted(lost):
        if number not in registered:
            raise PlanError(
                f"broker {number} (--lost) is not a broker of this cluster",
                f"its brokers are {_listed(registered)}",
            )
    missing = registered.keys() - {one.broker_id for one in surveys} - set(lost)
    if missing:
        raise PlanError(
            f"nothing is known of {_brokers(missing)} "
            f"({', '.join(registered[number].address for number in sorted(missing))})",
            "collect it from the data directory, or name it with --lost if its disk is lost for "
            "good",
        )


def _check_majority(surveys: Sequence[Survey], metadata: Survivor) -> None:
    """A majority that is left must not be replaced."""
    alive = _alive(metadata.members, {one.broker_id: one.metadata for one in surveys})
    if len(alive) >= metadata.members.quorum:
        raise PlanError(
            f"the metadata has a majority of its voters: {_brokers(alive)} of "
            f"{_listed(metadata.members.voters)}",
            "start these brokers, and recover the partitions that have no majority while the "
            "cluster runs: moldau partition recover",
        )


def _alive(members: Members, logs: dict[BrokerId, SurveyedLog]) -> list[BrokerId]:
    """The voters that are there, with the logs that the group counts on."""
    return [
        voter
        for voter in members.voters
        if voter in logs and logs[voter].log_id == members.log_of(voter)
    ]


def _warnings(surveys: Sequence[Survey]) -> Iterable[str]:
    for one in surveys:
        if one.disk_failure is not None:
            yield (
                f"the disk of broker {one.broker_id} failed ({one.disk_failure}): what was written "
                "last may be damaged"
            )
        for part in one.partitions:
            if part.corrupt:
                yield f"{part.topic}-{part.partition} on broker {one.broker_id}: {part.corrupt}"


class _Topics:
    """Decides for one partition after the other."""

    def __init__(
        self, surveys: Sequence[Survey], lost: Collection[BrokerId], chosen: Survey
    ) -> None:
        self._lost = lost
        self._registered = {one.id for one in chosen.brokers}
        self._logs: dict[tuple[str, int], dict[BrokerId, SurveyedLog]] = {}
        self._corrupt: set[tuple[str, int]] = set()
        self._load: Counter[BrokerId] = Counter({one.broker_id: 0 for one in surveys})
        self.forced: dict[BrokerId, list[ForcedLog]] = {one.broker_id: [] for one in surveys}
        self.replicas: list[PlannedReplicas] = []
        self.outcomes: list[TopicOutcome] = []
        for one in surveys:
            for part in one.partitions:
                key = part.topic_id, part.partition
                if part.log is None:
                    self._corrupt.add(key)
                else:
                    self._logs.setdefault(key, {})[one.broker_id] = part.log

    def decide(self, topic: KnownTopic) -> None:
        found: dict[str, list[int]] = {"whole": [], "recovered": [], "empty": [], "damaged": []}
        for number, partition in enumerate(topic.partitions):
            index = PartitionIndex(number)
            found[self._outcome(topic, index, partition)].append(index)
        self.outcomes.append(
            TopicOutcome(topic=topic.name, **{name: tuple(each) for name, each in found.items()})
        )

    def _outcome(self, topic: KnownTopic, index: PartitionIndex, partition: KnownPartition) -> str:
        key = topic.topic_id, index
        logs = self._logs.get(key, {})
        if not logs:
            if key in self._corrupt:
                return "damaged"
            self._begin_empty(topic, index, partition)
            return "empty"
        initial = _first_members(partition)
        survivors = [log.survivor(broker, initial) for broker, log in logs.items()]
        best = max(survivors, key=_rank)
        alive = _alive(best.members, logs)
        is_whole = len(alive) >= best.members.quorum
        holders = alive if is_whole else [best.broker]
        self._set_replicas(topic, index, partition, holders, best.members.voters)
        if is_whole:
            return "whole"
        self._force(topic, index, best.broker, [one.known_epoch for one in survivors], best)
        return "recovered"

    def _begin_empty(
        self, topic: KnownTopic, index: PartitionIndex, partition: KnownPartition
    ) -> None:
        here = min(
            self._load,
            key=lambda broker: (broker not in partition.replicas, self._load[broker], broker),
        )
        self._load[here] += 1
        self._set_replicas(topic, index, partition, [here], ())
        self._force(topic, index, here, [NO_EPOCH], None)

    def _force(
        self,
        topic: KnownTopic,
        index: PartitionIndex,
        broker: BrokerId,
        epochs: Sequence[Epoch],
        best: Survivor | None,
    ) -> None:
        self.forced[broker].append(
            ForcedLog(
                topic=topic.name,
                topic_id=topic.topic_id,
                partition=index,
                internal=topic.internal,
                epoch=forced_epoch(epochs),
                end_index=RaftIndex(0) if best is None else best.end_index,
                is_new=best is None,
            )
        )

    def _set_replicas(
        self,
        topic: KnownTopic,
        index: PartitionIndex,
        partition: KnownPartition,
        holders: Sequence[BrokerId],
        voters: Sequence[BrokerId],
    ) -> None:
        """The metadata must know those who have the data. A move that a lost broker takes part in
        would never end, so it is cancelled."""
        is_stuck = bool(partition.target) and not set(self._lost).isdisjoint(partition.replicas)
        if set(holders) <= set(partition.replicas) and not is_stuck:
            return
        desired = partition.target or partition.replicas
        if any(not log.voters for log in self._logs.get((topic.topic_id, index), {}).values()):
            # What they committed is on a majority of these; any others could lack it.
            voters = desired = (*holders, *_first_members(partition).voters)
        known = [one for one in (*voters, *desired) if one in self._registered]
        wanted = tuple(dict.fromkeys((*holders, *known)))
        self.replicas.append(
            PlannedReplicas(
                topic_id=topic.topic_id,
                partition=index,
                replicas=wanted[: max(len(desired), len(holders))],
                desired_version=partition.desired_version + 1,
            )
        )


def _first_members(partition: KnownPartition) -> Members:
    """As data/partitions.py has it: of a log that says nothing about members."""
    if not partition.target:
        return Members(tuple(sorted(partition.replicas)))
    adding = [one for one in partition.target if one not in partition.origin]
    return Members(
        tuple(sorted(partition.origin)),
        tuple(sorted(adding)),
    )


def _listed(brokers: Iterable[BrokerId]) -> str:
    return ", ".join(str(broker) for broker in sorted(brokers))


def _brokers(brokers: Collection[BrokerId]) -> str:
    return f"broker{'s' if len(brokers) > 1 else ''} {_listed(brokers)}"
