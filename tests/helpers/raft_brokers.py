"""Owns brokers for tests of replication: several drivers in one process, on loopback sockets."""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Self

import uvloop
from memory_log import MemoryLog
from msgspec.structs import replace

from moldau.log.disk_log import open_disk_log, read_slice
from moldau.log.interface import ControlKind, LogConfig, PartitionLog
from moldau.log.os_filesystem import OsFiles
from moldau.log.vote_journal import VoteJournal
from moldau.model.errors import MoldauError, RefusedError, StorageError
from moldau.model.flush import FlushPolicy
from moldau.model.ids import (
    BrokerId,
    Epoch,
    Offset,
    PartitionIndex,
    RaftIndex,
    TopicId,
)
from moldau.net.peers.limits import LinkLimits
from moldau.net.peers.secret import PeerSecret
from moldau.raft.config import RaftConfig
from moldau.raft.core import RaftCore
from moldau.raft.events import Role
from moldau.raft.membership import Members
from moldau.records.batch import BatchHeader
from moldau.records.control import EndMarker
from moldau.replica.driver import RaftDriver
from moldau.replica.flush_threads import FlushThreads
from moldau.replica.flusher import Flusher, FlushHandle
from moldau.replica.log_view import GroupLog
from moldau.replica.peer_codec import GroupKey
from moldau.replica.raft_group import RaftGroup
from moldau.replica.transport import Transport
from moldau.server.clock import SystemClock
from moldau.testing.logs import headers_of, make_batch
from moldau.testing.ports import free_ports
from moldau.testing.replicas import MemoryVotes, propose_batches
from moldau.testing.waiting import until, wait_seconds_max

CLUSTER = "c1"
SECRET = b"secret of c1"
CONFIG = RaftConfig(
    election_ms_min=400, election_ms_max=800, retry_ms=150, snapshot_retry_ms=500,
    transfer_ms_max=500,
)  # fmt: skip
PATIENT = replace(
    CONFIG, election_ms_min=30_000, election_ms_max=60_000, snapshot_retry_ms=10_000,
    transfer_ms_max=30_000,
)  # fmt: skip
"""Nobody falls because the machine stood still. First leaders stand without waiting for timers."""
HEARTBEAT_MS = 60


def run(test: Coroutine[Any, Any, None]) -> None:
    """On the event loop that brokers use."""

    async def bounded() -> None:
        # The load may rise meanwhile, and with it what a single wait may take.
        async with asyncio.timeout(8 * wait_seconds_max()):
            await test

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


class Owner:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.roles: list[tuple[Role, Epoch, BrokerId]] = []
        self.commit = 0
        self.commits = 0
        self.controls: list[tuple[ControlKind, bytes, RaftIndex]] = []
        self.stored: list[BatchHeader] = []
        self.truncated: list[int] = []
        self.resets: list[tuple[int, bytes]] = []
        self.failures: list[MoldauError] = []
        self.replaced: list[BrokerId] = []
        self.on_committed: Callable[[int], None] = lambda _: None

    def on_role(self, group: RaftGroup, role: Role, epoch: Epoch, leader: BrokerId) -> None:
        self.roles.append((role, epoch, leader))

    def on_commit(self, group: RaftGroup, offset: Offset) -> None:
        assert offset >= self.commit
        self.commit = offset
        self.commits += 1
        self.on_committed(offset)

    def on_control(
        self, group: RaftGroup, kind: ControlKind, payload: bytes, index: RaftIndex
    ) -> None:
        assert index < min(group.core.commit, group.log.flushed_index)
        assert self.commit >= group.log.offset_of(index)
        self.controls.append((kind, payload, index))

    def on_stored(
        self, group: RaftGroup, headers: list[BatchHeader], markers: Mapping[Offset, EndMarker]
    ) -> None:
        self.stored += headers

    def on_truncated(self, group: RaftGroup, offset: Offset) -> None:
        self.truncated.append(offset)

    def snapshot(self, group: RaftGroup, offset: Offset) -> bytes:
        return b"state at %d" % offset

    def on_reset(self, group: RaftGroup, offset: Offset, payload: bytes) -> None:
        self.resets.append((offset, payload))

    def on_voter_replaced(self, group: RaftGroup, voter: BrokerId) -> None:
        self.replaced.append(voter)

    def on_failed(self, group: RaftGroup, error: MoldauError) -> None:
        self.failures.append(error)


def key(number: int = 0) -> GroupKey:
    return GroupKey(TopicId(b"topic" + bytes(11)), PartitionIndex(number))


def make_group(number: int) -> RaftGroup:
    """A group of brokers 1 and 2 that no driver runs."""
    log = MemoryLog()
    view = GroupLog(log, Members((BrokerId(1), BrokerId(2))))
    core = RaftCore(me=BrokerId(1), log=view, config=RaftConfig(), chance=random.Random(1), now=0)
    return RaftGroup(
        key=key(number),
        log=log,
        view=view,
        core=core,
        owner=Owner(),
        flush_handle=FlushHandle(log, lambda: None),
    )


class Broker:
    """One broker: what survives a stop, and the driver while it runs."""

    def __init__(
        self,
        cluster: "Cluster",
        number: int,
        directory: Path | None,
        flush: FlushPolicy,
    ) -> None:
        self.cluster = cluster
        self.id = BrokerId(number)
        self.directory = directory
        self.log_config = LogConfig(flush=flush)
        # One that nobody else gets while this broker is down.
        self.address = ("127.0.0.1", free_ports(1)[0])
        self.memory_votes = MemoryVotes()
        self.logs: dict[int, PartitionLog] = {}
        self.members: dict[int, Members] = {}
        self.owners: dict[int, Owner] = {}
        self.failures: list[StorageError] = []
        self.is_running = False

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        clock = SystemClock()
        rng = random.Random(f"{self.id}/{time.monotonic_ns()}")
        self.flusher = Flusher(
            loop=loop, clock=clock, workers=FlushThreads(2), on_failure=self.failures.append
        )
        self.transport = Transport(
            loop=loop,
            clock=clock,
            rng=rng,
            cluster_id=CLUSTER,
            me=self.id,
            incarnation=f"dir{self.id}",
            secret=PeerSecret(SECRET, rng.randbytes),
            authorize=lambda hello: (
                None if hello.incarnation == f"dir{hello.sender}" else "another directory"
            ),
            limits=self.cluster.link_limits,
        )
        self.address = self.transport.bind(*self.address)
        self.transport.start()
        if self.directory is None:
            self.votes: MemoryVotes | VoteJournal = self.memory_votes
        else:
            self.directory.mkdir(parents=True, exist_ok=True)
            self.votes = VoteJournal.open(OsFiles(self.directory), "votes")
        self.driver = RaftDriver(
            loop=loop,
            clock=clock,
            rng=rng,
            flusher=self.flusher,
            votes=self.votes,
            transport=self.transport,
            config=self.cluster.config,
            heartbeat_ms=self.cluster.heartbeat_ms,
        )
        self.driver.start()
        self.is_running = True
        for number, members in self.members.items():
            self.open(number, members)

    def add(self, number: int, members: Members) -> RaftGroup:
        self.members[number] = members
        return self.open(number, members)

    def open(self, number: int, members: Members) -> RaftGroup:
        self.open_log(number, members)
        self.owners[number] = Owner()
        return self.driver.add_group(key(number), self.logs[number], members, self.owners[number])

    def open_log(self, number: int, members: Members) -> None:
        new_id = self.driver.new_log_id(key(number), members)
        if self.directory is not None:
            files = OsFiles(self.directory)
            self.logs[number] = open_disk_log(files, f"log{number}", self.log_config, new_id)
        elif number not in self.logs:
            self.logs[number] = MemoryLog(self.log_config, new_id)

    def stop(self) -> None:
        """As a process that ends: links break, logs are closed."""
        if not self.is_running:
            return
        self.is_running = False
        self.driver.stop()
        self.transport.close()
        self.flusher.stop()
        if self.directory is not None:
            for log in self.logs.values():
                log.close()
            assert isinstance(self.votes, VoteJournal)
            self.votes.close()

    def group(self, number: int = 0) -> RaftGroup:
        group = self.driver.groups.get(key(number).name)
        assert group is not None
        return group


class Cluster:
    """Brokers 1 to n, all of them peers."""

    broker_type: type[Broker] = Broker

    def __init__(
        self,
        count: int,
        *,
        directory: Path | None = None,
        flush: FlushPolicy = FlushPolicy.ALWAYS,
        config: RaftConfig = CONFIG,
        heartbeat_ms: int = HEARTBEAT_MS,
        link_limits: LinkLimits | None = None,
    ) -> None:
        self.config = config
        self.heartbeat_ms = heartbeat_ms
        self.link_limits = link_limits
        self.brokers: dict[int, Broker] = {}
        for number in range(1, count + 1):
            place = directory / f"b{number}" if directory is not None else None
            self.brokers[number] = self.broker_type(self, number, place, flush)

    async def __aenter__(self) -> Self:
        for broker in self.brokers.values():
            broker.start()
        self.introduce()
        return self

    async def __aexit__(self, *_: object) -> None:
        for broker in self.brokers.values():
            broker.stop()
        await asyncio.sleep(0)

    def use(self, config: RaftConfig) -> None:
        """Other timers from now on: with PATIENT nobody falls before a test lets somebody fall."""
        self.config = config
        for broker in self.brokers.values():
            if broker.is_running:
                for group in broker.driver.groups.values():
                    group.core.config = config
                    group.core.election.timeout_ms = group.core.election.draw_timeout()
                    broker.driver.recheck_flushed(group)

    def introduce(self) -> None:
        for one in self.brokers.values():
            for other in self.brokers.values():
                if one is not other and one.is_running:
                    one.driver.add_peer(other.id, other.address)

    def add_group(self, number: int = 0, voters: tuple[int, ...] | None = None) -> None:
        members = Members(tuple(BrokerId(v) for v in voters or self.brokers))
        for voter in members.voters:
            self.brokers[voter].add(number, members)

    async def restart(self, number: int) -> Broker:
        broker = self.brokers[number]
        broker.start()
        self.introduce()
        return broker

    def leader(self, number: int = 0) -> Broker | None:
        """Who leads in the highest epoch, and has committed in it."""
        leaders = [
            broker
            for broker in self.brokers.values()
            if broker.is_running
            and (group := broker.driver.groups.get(key(number).name)) is not None
            and group.core.is_ready
        ]
        return max(leaders, key=lambda broker: broker.group(number).core.epoch, default=None)

    def stand_for_fresh(self, number: int) -> bool:
        """Let somebody stand for a group that nobody has led yet, as the brokers do: no test has to
        wait for the timers of a first election. False while there are links to wait for."""
        held = [
            (broker, group)
            for broker in self.brokers.values()
            if broker.is_running
            and (group := broker.driver.groups.get(key(number).name)) is not None
        ]
        if not held or any(
            group.core.epoch > 0 or group.core.leader >= 0 or group.core.role is not Role.FOLLOWER
            for _, group in held
        ):
            return True
        ids = {broker.id for broker, _ in held}
        for broker, _ in held:
            links = broker.transport.links
            if not all(peer in links and links[peer].is_connected for peer in ids - {broker.id}):
                return False
        broker, group = random.choice(held)
        if broker.id in group.core.members.voters:
            broker.driver.campaign(group)
        return True

    async def wait_for_leader(self, number: int = 0, other_than: int = 0) -> Broker:
        has_stood = False

        def found() -> Broker | None:
            nonlocal has_stood
            leader = self.leader(number)
            if leader is None and not has_stood:
                has_stood = self.stand_for_fresh(number)
            return leader if leader is not None and leader.id != other_than else None

        leader = await until(found, "there is a leader", describe=lambda: self.describe(number))
        assert leader is not None
        return leader

    async def produce(
        self, count: int = 1, *, value: bytes = b"v", number: int = 0, records: int = 1
    ) -> int:
        """Propose batches to the leader and wait until all are committed; returns the end.

        If it is deposed before, again to the next one, as a client would.
        """
        while True:
            leader = await self.wait_for_leader(number)
            group, owner = leader.group(number), leader.owners[number]
            epoch, end = group.core.epoch, 0
            try:
                for _ in range(count):
                    end = propose(leader, value=value, number=number, records=records)
            except RefusedError:
                await asyncio.sleep(0.01)
                continue

            def is_deposed(group: RaftGroup = group, epoch: int = epoch) -> bool:
                return group.core.epoch != epoch or not group.is_leader

            await until(
                lambda owner=owner, end=end, is_deposed=is_deposed: (
                    owner.commit >= end or is_deposed()
                ),
                "all of it is committed",
                describe=lambda: self.describe(number),
            )
            if owner.commit >= end and not is_deposed():
                return end

    def describe(self, number: int) -> str:
        """Everything that a core knows, for a test that waits in vain."""
        lines = []
        for broker in self.brokers.values():
            if (
                not broker.is_running
                or (group := broker.driver.groups.get(key(number).name)) is None
            ):
                continue
            core = group.core
            peers = broker.driver._peers.values()
            waiting = [
                (peer.id, list(peer.waiting.values()), list(peer.cold.values())) for peer in peers
            ]
            links = [(peer.id, peer.link.is_connected) for peer in peers]
            progress = [
                (peer, {name: getattr(known, name) for name in known.__slots__})
                for peer, known in core.progress.items()
            ]
            lines.append(
                f"{broker.id}: {core.role} epoch={core.epoch} leader={core.leader} end={core.end} "
                f"flushed={core.flushed}/{broker.logs[number].flushed_index} commit={core.commit} "
                f"waiting={waiting} links={links} progress={progress}"
            )
        return "\n".join(lines)

    async def agree(self, number: int = 0, brokers: list[int] | None = None) -> None:
        """Wait until all logs hold the same."""
        chosen = [self.brokers[b] for b in brokers or self.brokers]

        def same() -> bool:
            ends = {broker.logs[number].end_index for broker in chosen}
            marks = {broker.group(number).core.commit for broker in chosen}
            return len(ends) == 1 and ends == marks

        await until(same, "all logs are the same", describe=lambda: self.describe(number))
        contents = [content(broker.logs[number]) for broker in chosen]
        for other in contents[1:]:
            assert other == contents[0]


def propose(broker: Broker, *, value: bytes = b"v", number: int = 0, records: int = 1) -> int:
    data = bytearray(make_batch(0, count=records, value=value))
    _, end = propose_batches(broker.driver, broker.group(number), data, headers_of(bytes(data)))
    return end


def content(
    log: PartitionLog, start: int | None = None
) -> tuple[bytes, list[tuple[Epoch, ControlKind, Offset]]]:
    """Every byte of the records, and the control entries."""
    offset, pieces = Offset(log.start_offset if start is None else start), []
    while offset < log.end_offset:
        read = log.read(offset, 1 << 20, log.end_offset)
        pieces.append(read_slice(read.data))
        offset = read.next_offset
    controls = [(entry.epoch, entry.kind, entry.offset) for entry in log.controls()]
    return b"".join(pieces), controls
