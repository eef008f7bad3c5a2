"""Lets partitions go on whose majority of replicas is lost for good; the metadata has its majority.

1. All brokers that are left say what they have of the partitions, and which brokers they hear. A
   broker that anybody hears is not lost.
2. The lost brokers are removed from the cluster in the committed metadata: a directory of theirs
   can never register again, and no broker of the cluster talks to them. From here on what they hold
   can decide nothing, and what is left can.
3. Everything is asked again, and per partition the replica with the best log becomes the only voter
   (replica/only_voter.py). The reconciler then adds replicas on other brokers.
4. Partitions of internal topics of which nothing is left begin again on other brokers, empty: they
   cannot be deleted, and nobody could use what was in them.

It can be repeated from the start after any failure: what was removed stays so, and a partition that
has a majority again is not touched.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from moldau.control.metadata_store import MetadataStore
from moldau.data.forced_replicas import BrokerSurvey, ForcedReplicas, PartitionKey
from moldau.metadata.commands import RemoveLostBrokers
from moldau.metadata.image import Image, Partition, Topic
from moldau.metadata.lost_broker_rules import check_lost, has_replica_on
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import NO_EPOCH, BrokerId, Epoch
from moldau.model.malformed import MALFORMED
from moldau.model.topology import PartitionRecovered, RecoveryReply, ReplicaSurvey
from moldau.net.peers.caller import PeerCaller
from moldau.net.peers.methods import PeerMethod
from moldau.replica.only_voter import forced_epoch

_CALL_SECONDS_MAX: Final = 20.0
_decode_survey: Final = msgspec.msgpack.Decoder(BrokerSurvey).decode

_OPEN_SECONDS: Final = 0.25
_OPEN_SECONDS_MAX: Final = 20.0
"""For replicas that brokers were given: how often they are asked for, and how long."""
_ELECTION_SECONDS_MAX: Final = 6.0
"""For an election, or a few: a group that lost its leader a moment ago needs no recovery."""

Part = tuple[Topic, Partition]
Surveys = Mapping[BrokerId, BrokerSurvey | RefusedError]


class PartitionRecovery:
    def __init__(
        self,
        *,
        me: BrokerId,
        metadata: MetadataStore,
        caller: PeerCaller,
        forced: ForcedReplicas,
    ) -> None:
        self._me = me
        self._metadata = metadata
        self._caller = caller
        self._forced = forced
        self._lock = asyncio.Lock()

    async def recover(
        self,
        lost: frozenset[BrokerId],
        wanted: Sequence[tuple[str, int]] | None,
        *,
        dry_run: bool,
    ) -> RecoveryReply:
        """Recover these partitions, or all that lost a majority. Raises RefusedError."""
        async with self._lock:
            image = await self._metadata.fresh()
            check_lost(image, lost)
            if self._me in lost:
                raise RefusedError(
                    ErrorCode.INVALID_REQUEST, f"broker {self._me} is not lost: it responds"
                )
            parts, found = await self._judge_all(image, lost, wanted)
            is_removed = lost <= image.removed_brokers.keys()
            if dry_run or not any(one.state == "possible" for one in found):
                return RecoveryReply(partitions=tuple(found), is_removed=is_removed)
            empty = {(one.topic, one.partition) for one in found if begins_empty(one)}
            await self._metadata.submit(RemoveLostBrokers(broker_ids=tuple(sorted(lost))))
            # Only what is left counts now, and it has no leader that could still change it. In the
            # image from before: brokers that are to get replicas now have nothing to say.
            parts, found = await self._judge_elected(image, lost, wanted)
            done = [
                await self._recover_one(part, one) if one.state == "possible" else one
                for part, one in zip(parts, found, strict=True)
                if (one.topic, one.partition) not in empty
            ]
            done += await self._begin_again(lost, sorted(empty)) if empty else []
            return RecoveryReply(partitions=tuple(done), is_removed=True)

    # ---- what is left

    async def _judge_all(
        self, image: Image, lost: frozenset[BrokerId], wanted: Sequence[tuple[str, int]] | None
    ) -> tuple[list[Part], list[PartitionRecovered]]:
        """The partitions without a majority, and whether each can be recovered."""
        parts = _affected(image, lost, wanted)
        surveys = await self._ask_all(image, lost, parts)
        for broker, survey in surveys.items():
            if isinstance(survey, BrokerSurvey) and (heard := lost.intersection(survey.heard)):
                raise RefusedError(
                    ErrorCode.INVALID_REQUEST,
                    f"broker {min(heard)} is not lost: broker {broker} heard from it within the "
                    "last 10 seconds; stop it first, if its data are lost",
                )
        gone = lost | image.removed_brokers.keys()
        judged = [
            (part, one)
            for number, part in enumerate(parts)
            if (one := judge(part, number, surveys, gone)) is not None
        ]
        return [part for part, _ in judged], [one for _, one in judged]

    async def _judge_elected(
        self, image: Image, lost: frozenset[BrokerId], wanted: Sequence[tuple[str, int]] | None
    ) -> tuple[list[Part], list[PartitionRecovered]]:
        """As `_judge_all`, after groups that can elect a leader by themselves had time for it."""
        deadline = time.monotonic() + _ELECTION_SECONDS_MAX
        while True:
            parts, found = await self._judge_all(image, lost, wanted)
            if not any(map(may_elect, found)) or time.monotonic() > deadline:
                return parts, found
            await asyncio.sleep(_OPEN_SECONDS)

    async def _ask_all(
        self, image: Image, lost: frozenset[BrokerId], parts: Sequence[Part]
    ) -> Surveys:
        keys: tuple[PartitionKey, ...] = tuple(
            (bytes(topic.topic_id), int(partition.index)) for topic, partition in parts
        )
        left = [broker for broker in image.brokers if broker not in lost]
        answers = await asyncio.gather(*(self._ask(image, broker, keys) for broker in left))
        return dict(zip(left, answers, strict=True))

    async def _ask(
        self, image: Image, broker: BrokerId, keys: tuple[PartitionKey, ...]
    ) -> BrokerSurvey | RefusedError:
        if broker == self._me:
            return self._forced.survey(image, keys)
        try:
            return _decode_survey(
                await self._caller.call(
                    broker,
                    PeerMethod.SURVEY_REPLICAS,
                    msgspec.msgpack.encode(keys),
                    _CALL_SECONDS_MAX,
                )
            )
        except RefusedError as error:
            return error
        except MALFORMED as error:
            return RefusedError(ErrorCode.UNKNOWN_SERVER_ERROR, f"malformed answer: {error}")

    # ---- one partition

    async def _begin_again(
        self, lost: frozenset[BrokerId], wanted: Sequence[tuple[str, int]]
    ) -> list[PartitionRecovered]:
        """Partitions of which nothing is left, on the brokers that have them by now.

        All of these are waited for: so every run of the command chooses the same one.
        """
        deadline = time.monotonic() + _OPEN_SECONDS_MAX
        try:
            while True:
                parts, found = await self._judge_all(await self._metadata.fresh(), lost, wanted)
                is_open = not any(one.state == "impossible" for one in found)
                if is_open or time.monotonic() > deadline:
                    break
                await asyncio.sleep(_OPEN_SECONDS)
        except RefusedError as error:
            return [
                PartitionRecovered(topic=name, partition=index, state="failed", reason=str(error))
                for name, index in wanted
            ]
        return [
            await self._recover_one(part, one) if one.state == "possible" else one
            for part, one in zip(parts, found, strict=True)
        ]

    async def _recover_one(self, part: Part, one: PartitionRecovered) -> PartitionRecovered:
        topic, partition = part
        if begins_empty(one):
            reason = "no broker was given it: upgrade all brokers, and run the command again"
            return replace(one, state="failed", reason=reason)
        epoch = forced_epoch([Epoch(one.known_epoch)])
        survivor = BrokerId(one.survivor)
        needs_voter = any(each.is_voter for each in one.replicas if each.broker == survivor)
        try:
            if survivor == self._me:
                await self._forced.make_only_voter(
                    topic.topic_id, partition.index, epoch, needs_voter=needs_voter
                )
            else:
                order = (topic.topic_id, partition.index, epoch, needs_voter)
                await self._caller.call(
                    survivor,
                    PeerMethod.MAKE_ONLY_VOTER,
                    msgspec.msgpack.encode(order),
                    _CALL_SECONDS_MAX,
                )
        except RefusedError as error:
            return replace(one, state="failed", reason=str(error))
        return replace(one, state="recovered")


def _affected(
    image: Image, lost: frozenset[BrokerId], wanted: Sequence[tuple[str, int]] | None
) -> list[Part]:
    """Partitions that have replicas on brokers that are lost, now or since before."""
    gone = lost | image.removed_brokers.keys()
    if wanted is None:
        chosen = [(topic, part) for topic in image.topics.values() for part in topic.partitions]
    else:
        chosen = []
        for name, index in dict.fromkeys(wanted):
            topic = image.topics.get(name)
            if topic is None or not 0 <= index < len(topic.partitions):
                raise RefusedError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"unknown partition {name}-{index}"
                )
            chosen.append((topic, topic.partitions[index]))
    return [part for part in chosen if has_replica_on(part[1], gone)]


def begins_empty(one: PartitionRecovered) -> bool:
    return one.state == "possible" and one.survivor < 0


def may_elect(one: PartitionRecovered) -> bool:
    """Whether a majority of its voters is there, some of which do not know yet that they are."""
    sound = {replica.broker for replica in one.replicas if not replica.problem}
    return one.state == "impossible" and any(
        2 * len(sound.intersection(replica.voters)) > len(replica.voters)
        for replica in one.replicas
        if replica.is_voter and not replica.problem
    )


def judge(
    part: Part, number: int, surveys: Surveys, gone: frozenset[BrokerId]
) -> PartitionRecovered | None:
    """None for a partition with a majority: it needs nothing."""
    topic, partition = part
    asked = [
        survey.replicas[number] for survey in surveys.values() if isinstance(survey, BrokerSurvey)
    ]
    replicas = [one for one in asked if one.voters or one.broker in partition.replicas]
    sound = [replica for replica in replicas if not replica.problem]
    counted = [replica for replica in sound if replica.is_voter]
    is_last = topic.internal and not _left_voters(partition, replicas, gone)
    # One that was still being filled lacks what a voter may have, unless its log is the better one.
    # If no voter is left of what cannot be deleted, it is better than nothing.
    best = max(
        sound if counted or is_last else (),
        key=lambda one: (one.last_epoch, one.end_index, one.is_voter, -one.broker),
        default=None,
    )
    voters = best.voters if best is not None else partition.replicas
    quorum = len(voters) // 2 + 1
    voting = [replica.broker for replica in counted if replica.broker in voters]
    if len(voting) >= quorum or any(replica.has_leader for replica in counted):
        return None
    left = [broker for broker in voters if broker not in gone]
    # By entries that those who respond lack, others may be voters: the metadata has them all.
    maybe = {*voters, *partition.replicas, *partition.origin} - gone
    silent = [
        (broker, survey)
        for broker, survey in surveys.items()
        # Before something begins empty, all have to say that they have nothing of it.
        if isinstance(survey, RefusedError) and (broker in maybe or (is_last and best is None))
    ]
    reason = ""
    if silent:
        reason = (
            f"broker {silent[0][0]} may have a replica, too, and does not respond "
            f"({silent[0][1]}): start it; only if its disk is lost, name it as lost as well"
        )
    elif passing := [one for one in replicas if one.may_pass and one.broker in maybe]:
        reason = (
            f"the replica of broker {passing[0].broker} may be better ({passing[0].problem}): mend "
            "that first, or stop the broker and name it as lost as well"
        )
    elif best is None and not is_last:
        reason = "no replica is left that could be used: " + (
            "set the damaged log aside, start its broker again, and repeat the command"
            if topic.internal
            else "delete the topic, and restore it"
        )
    elif len(left) >= quorum:
        unusable = next(broker for broker in left if broker not in voting)
        reason = (
            f"the replica of broker {unusable} cannot be used, and its broker is not lost: repair "
            "it, or stop the broker and name it as lost as well"
        )
    note = ""
    if best is None:
        note = "no replica is left: it begins again, empty; what was kept there is lost"
    elif is_last and not best.is_voter:
        note = f"no voter is left: what the replica of broker {best.broker} lacks is lost"
    return PartitionRecovered(
        topic=topic.name,
        partition=partition.index,
        survivor=-1 if reason or best is None else best.broker,
        state="impossible" if reason else "possible",
        reason=reason or note,
        known_epoch=max((one.known_epoch for one in asked), default=NO_EPOCH),
        replicas=tuple(replicas),
    )


def _left_voters(
    partition: Partition, replicas: Sequence[ReplicaSurvey], gone: frozenset[BrokerId]
) -> set[int]:
    """Brokers that may have what was committed, and are not gone: no more than these say so.

    A sound replica whose log is not that of a voter got this log after it had lost the other one.
    """
    sound = [one for one in replicas if not one.problem]
    by_logs = {voter for one in sound for voter in one.voters}
    damaged = {one.broker for one in replicas if one.problem}
    without = {one.broker for one in sound if not one.is_voter}
    return ({*(partition.origin or partition.replicas), *by_logs, *damaged} - gone) - without
