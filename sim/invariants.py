"""What must hold at any time inside the brokers, looked at after each turn of one of them.

Clients see what was lost when it is too late to say why. These rules are broken much earlier:

- of one group and epoch, one broker leads, and it has everything that is committed;
- what a broker flushed and acknowledged is there after its next start, as long as its log may vote;
- what a log calls flushed is on the disk;
- compaction goes no further than what is committed, and no batch lies over a control entry;
- a leader counts on nothing that is not on a disk, and commits what a majority has there;
- high watermarks never go back while a process runs;
- a replica remembers of its producers what is in its log, also after that was cut;
- the metadata of all brokers are equal where their versions are;
- no log is dropped while its group counts on the broker as a voter, and who lost its log stands for
  no election;
- new partitions are spread over machines (machines.py);
- in the end, every replica has caught up, and no machine has a majority of the metadata's voters.
"""

from asyncio import events
from bisect import bisect_right
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

from moldau.log.disk_log_state import DiskLogState
from moldau.log.flush_mark import HEADER_BYTES
from moldau.log.interface import FlushPolicy
from moldau.metadata.image import Image
from moldau.metadata.snapshot import encode_image
from moldau.model.ids import BrokerId, PartitionIndex, TopicId
from moldau.raft.events import Role
from moldau.raft.membership import NO_BROKER, Members
from moldau.records.record import NO_PRODUCER_ID
from moldau.replica.peer_codec import METADATA_GROUP, GroupKey
from moldau.replica.raft_group import RaftGroup
from moldau.replica.replica import Replica
from moldau.server.broker import BrokerServer
from sim.machines import crowded, rules_alone
from sim.node import Node
from sim.scene import Scene


class _Seen:
    """What was last seen of one group on one broker."""

    __slots__ = (
        "facts",
        "flushed",
        "group",
        "is_new",
        "log_id",
        "round",
        "synced",
        "truncations",
        "watermark",
    )

    def __init__(self) -> None:
        self.facts: tuple[Any, ...] = ()
        self.flushed = 0
        self.log_id = -1
        self.round = 0
        self.synced = -1
        self.truncations = 0
        self.group: RaftGroup | None = None
        self.watermark = 0
        self.is_new = True


class Invariants:
    """Of one world."""

    def __init__(
        self, scene: Scene, nodes: Sequence[Node], say: Callable[[str, str], None]
    ) -> None:
        """`nodes`: of the cluster at any time."""
        self._scene = scene
        self._nodes = nodes
        self._say = say
        self._leaders: dict[tuple[str, int], str] = {}
        self.elected: list[int] = []
        """When somebody began to lead something, in the time of the history."""
        self._newest: dict[str, int] = {}
        """The latest epoch of each group that had a leader."""
        self._committed: dict[str, int] = {}
        self._members: dict[str, Members] = {}
        """Of each group, by the last of its entries that anybody knew to be committed."""
        self._watermarks: dict[str, int] = {}
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._images: dict[int, bytes] = {}
        """Digests, by version."""
        self._image_of: dict[str, Image] = {}
        self._newest_image: Image | None = None
        """That any broker had, ever: after a start they know less for a while."""

    def watch(self, node: Node) -> None:
        """A new process: its memory is empty."""
        for (name, _), seen in self._seen.items():
            if name == node.name:
                seen.is_new, seen.facts, seen.watermark = True, (), 0

    def forget(self, node: Node) -> None:
        """Its disk is lost."""
        for key in [key for key in self._seen if key[0] == node.name]:
            del self._seen[key]

    def after(self, node: Node, server: BrokerServer) -> None:
        """One turn of that broker's loop."""
        driver = server._driver
        if driver is None:
            return
        for name, group in driver.groups.items():
            core = group.core
            synced = group.log.flushed_offset
            facts = (core.epoch, core.commit, core.flushed, core.role, core.end, synced)
            seen = self._seen.get((node.name, name))
            if seen is None:
                seen = self._seen[node.name, name] = _Seen()
            if seen.facts != facts:
                seen.facts = facts
                self._look(node, name, group, seen)
        store = getattr(server, "_metadata", None)
        if store is not None and store.image is not self._image_of.get(node.name):
            self._look_at_image(node, store.image)

    def _look(self, node: Node, name: str, group: RaftGroup, seen: _Seen) -> None:
        core = group.core
        if group.failure is not None or group.is_removed:
            return
        if seen.is_new:
            self._look_at_start(node, name, group, seen)
        seen.log_id, seen.flushed = core.log_id, core.flushed
        if events._get_running_loop() is not None:
            # The power goes in the middle of a step, which may cut what was flushed before.
            seen.flushed = min(core.flushed, group.log.flushed_index)
        watermark = getattr(group.owner, "high_watermark", 0)
        if seen.group is not group:
            # Opened again: a replica that was corrupt, or has moved away and back.
            seen.group, seen.watermark = group, 0
        if watermark < seen.watermark:
            self._broken(
                f"{node.name}: the high watermark of {name} was {seen.watermark}, is {watermark}"
            )
        seen.watermark = watermark
        if watermark > self._watermarks.get(name, 0):
            self._watermarks[name] = watermark
        self._look_at_cleaned(node, name, group, seen)
        if seen.synced != group.log.flushed_offset:
            seen.synced = group.log.flushed_offset
            self._look_at_disk(node, name, group)
        if seen.truncations != core.truncations:
            seen.truncations = core.truncations
            self._look_at_producers(node, name, group)
        if core.commit > self._committed.get(name, 0):
            self._committed[name] = core.commit
            self._members[name] = core.log.members(core.commit)[1]
        if core.role in (Role.PRE_CANDIDATE, Role.CANDIDATE):
            self._look_at_candidate(node, name, group)
        elif core.role is Role.FOLLOWER:
            self._look_at_vote(node, name, group)
        if core.role is Role.LEADER:
            self._look_at_leader(node, name, group)

    def _look_at_candidate(self, node: Node, name: str, group: RaftGroup) -> None:
        core = group.core
        if not core.members.is_voter(core.me, core.log_id) and not (
            core.members_index >= core.commit
            and core.previous_members.is_voter(core.me, core.log_id)
        ):
            self._broken(f"{node.name} stands for {name} without the log that may vote")

    def _look_at_vote(self, node: Node, name: str, group: RaftGroup) -> None:
        """As long as the candidate is one, it counts on the logs that it asked."""
        core = group.core
        other = self._node_of(core.voted_for) if core.voted_for != NO_BROKER else None
        driver = other.server._driver if other is not None and other.server is not None else None
        asking = driver.groups.get(name) if driver is not None else None
        if (
            asking is not None
            and asking.core.role is Role.CANDIDATE
            and asking.core.epoch == core.epoch
            and asking.core.members.log_of(core.me) != core.log_id
        ):
            self._broken(f"{node.name} votes in {name} without the log that may vote")

    def _node_of(self, broker: int) -> Node | None:
        """The node that runs, or last ran, as that broker."""
        return next((node for node in self._nodes if node.broker_id == broker), None)

    def _look_at_start(self, node: Node, name: str, group: RaftGroup, seen: _Seen) -> None:
        seen.is_new = False
        core = group.core
        may_vote = core.log_id == core.members.log_of(core.me)
        if (
            seen.log_id == core.log_id
            and may_vote
            and group.log.config.flush is FlushPolicy.ALWAYS
            and core.end < seen.flushed
            and self._is_known(group)
        ):
            self._broken(
                f"{node.name} acknowledged {name} up to {seen.flushed}, and came back with "
                f"{core.end}"
            )

    def _look_at_disk(self, node: Node, name: str, group: RaftGroup) -> None:
        log = group.log
        assert isinstance(log, DiskLogState)
        segment, offset = log.active, log.flushed_offset
        if log.config.flush is not FlushPolicy.ALWAYS or offset <= segment.base_offset:
            return
        position = segment.position
        if offset < log.end_offset:
            position = segment.position_of(offset)[1]
        is_there = node.disk.is_durable(segment.path, HEADER_BYTES, position)
        if offset > log.end_offset or not is_there:
            self._broken(f"{node.name} calls {name} flushed up to {offset}, which it is not")

    def _look_at_cleaned(self, node: Node, name: str, group: RaftGroup, seen: _Seen) -> None:
        log = group.log
        assert isinstance(log, DiskLogState)
        cleaned = log.checkpoint.state
        if seen.round == cleaned.round or not isinstance(group.owner, Replica):
            return
        seen.round = cleaned.round
        if cleaned.end > self._watermarks.get(name, 0):
            self._broken(f"{node.name} compacted {name} up to {cleaned.end}, which may yet be cut")
        begins = [entry.offset for entry in log.control_entries.entries]
        for header in group.log.headers(log.start_offset):
            place = bisect_right(begins, header.base_offset)
            if place < len(begins) and begins[place] < header.next_offset:
                self._broken(
                    f"{node.name} has one batch of {name} from {header.base_offset} to "
                    f"{header.last_offset}, and a control entry at {begins[place]}"
                )

    def _look_at_producers(self, node: Node, name: str, group: RaftGroup) -> None:
        """What is remembered and not in the log would be taken for a retry, and lost."""
        log, owner = group.log, group.owner
        if not isinstance(owner, Replica) or events._get_running_loop() is not None:
            # Where the power goes in the middle of a step, one may be cut and the other not.
            return
        for producer, state in owner.producers:
            for batch in state.batches:
                if batch.base_offset < log.start_offset:
                    continue
                header = next(log.headers(batch.base_offset), None)
                # Compaction may have left nothing there.
                is_other = (
                    header is not None
                    and header.base_offset == batch.base_offset
                    and header.producer_id not in (producer, NO_PRODUCER_ID)
                )
                if is_other or batch.last_offset >= log.end_offset:
                    self._broken(
                        f"{node.name} remembers sequence {batch.base_sequence} of producer "
                        f"{producer} at {batch.base_offset} of {name}, and does not have it"
                    )

    def _is_known(self, group: RaftGroup) -> bool:
        """Whether the newest metadata have the topic: what is deleted may come back empty, as long
        as a broker that was away does not know."""
        newest = self._newest_image
        topic_id = group.key.topic_id
        if group.key == METADATA_GROUP or newest is None:
            return True
        return newest.topic_by_id(topic_id) is not None

    def _look_at_leader(self, node: Node, name: str, group: RaftGroup) -> None:
        core = group.core
        if (name, core.epoch) not in self._leaders:
            self.elected.append(self._scene.history.now())
        if (name, core.epoch) not in self._leaders and isinstance(group.owner, Replica):
            topic, index = group.owner.partition
            self._say(node.name, f"leads {topic}-{index} in epoch {core.epoch}")
        known = self._leaders.setdefault((name, core.epoch), node.name)
        self._newest[name] = newest = max(core.epoch, self._newest.get(name, core.epoch))
        if known != node.name and self._is_known(group):
            self._broken(f"{known} and {node.name} lead {name} in epoch {core.epoch}")
        is_short = core.end < self._committed.get(name, 0)
        if core.epoch == newest and is_short and self._is_known(group):
            self._broken(
                f"{node.name} leads {name} and ends at {core.end}, "
                f"{self._committed[name]} are committed"
            )
        self._look_at_majority(node, name, group)
        for peer, progress in core.progress.items():
            if peer == core.me or not progress.match:
                continue
            other = self._node_of(peer)
            seen = self._seen.get((other.name, name)) if other is not None else None
            if (
                seen is not None
                and seen.log_id == progress.log_id
                and seen.facts
                and seen.facts[0] <= core.epoch
                and progress.match > seen.flushed
            ):
                self._broken(
                    f"{node.name} counts on {progress.match} of {name} at broker {peer}, "
                    f"which has {seen.flushed} on its disk"
                )

    def _look_at_majority(self, node: Node, name: str, group: RaftGroup) -> None:
        """Not while the members change: the set of holders changes then."""
        core = group.core
        if core.members_index >= core.commit or group.log.config.flush is not FlushPolicy.ALWAYS:
            return
        holders = 0
        for voter in core.members.voters:
            other = self._node_of(voter)
            seen = self._seen.get((other.name, name)) if other is not None else None
            holders += other is None or (seen is not None and seen.flushed >= core.commit)
        if holders < core.members.quorum:
            self._broken(
                f"{node.name} commits {name} up to {core.commit}, which {holders} of "
                f"{len(core.members.voters)} voters have on their disks"
            )

    def _look_at_image(self, node: Node, image: Image) -> None:
        self._image_of[node.name] = image
        newest = self._newest_image
        if newest is None or image.version > newest.version:
            for partition in crowded(newest, image) if newest is not None else ():
                self._broken(f"{partition} has two replicas on one machine, and another is free")
            self._newest_image = image
        digest = blake2b(encode_image(image)).digest()
        if self._images.setdefault(image.version, digest) != digest:
            self._broken(f"{node.name} has other metadata than others in version {image.version}")

    def are_copies_whole(self) -> bool:
        """Whether every member of a group that is led has all that is committed there."""
        for node in self._nodes:
            server = node.server
            driver = server._driver if server is not None else None
            for group in driver.groups.values() if driver is not None else ():
                core = group.core
                if core.role is not Role.LEADER or group.failure is not None or group.is_removed:
                    continue
                if any(each.received < core.commit for each in core.progress.values()):
                    return False
        return True

    def are_voters_spread(self) -> bool:
        """Whether no machine has a majority of the metadata's voters for itself."""
        image, members = self._newest_image, self._members.get(METADATA_GROUP.name)
        return image is None or members is None or not rules_alone(members.voters, image)

    def dropping(self, node: Node, topic: str, topic_id: TopicId, index: PartitionIndex) -> None:
        """A broker is about to delete the log of a partition."""
        newest = self._newest_image
        if newest is None or newest.topic_by_id(topic_id) is None:
            return
        name = GroupKey(topic_id, index).name
        members = self._members.get(name)
        me = BrokerId(node.broker_id)
        if (
            members is not None
            and me in members.voters
            and members.log_of(me) == self._log_id(node, name)
        ):
            self._broken(f"{node.name} drops its log of {topic}-{index}, and votes there")

    def _log_id(self, node: Node, name: str) -> int:
        seen = self._seen.get((node.name, name))
        return seen.log_id if seen is not None else -1

    def _broken(self, text: str) -> None:
        self._scene.violation(text)
