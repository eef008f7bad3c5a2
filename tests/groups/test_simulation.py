"""Well-behaved members that come, go and crash: the group always settles."""

import random

import pytest
from effort import seeds

from moldau.groups.events import OffsetToCommit, ResetOffsets
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset

REJOIN = {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION}
RESTART = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}


class Client:
    """What a consumer does: join, sync, heartbeat; start over when told."""

    def __init__(self, world, name, instance) -> None:
        self.world = world
        self.name = name
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.waiting = None
        self.phase = "join"
        self.assignment: bytes | None = None

    def step(self) -> None:
        if self.waiting is not None:
            reply = self.world.reply(self.waiting)
            if reply is None:
                return
            self.waiting = None
            self.heard(reply)
        elif self.phase == "join":
            self.assignment = None
            self.waiting = self.world.send_join(
                self.member_id,
                client_id=self.name,
                instance_id=self.instance,
                member_id_required=True,
            )
        elif self.phase == "stable":
            error = self.world.heartbeat(self.member_id, self.generation, instance_id=self.instance)
            self.check(error)

    def check(self, error) -> bool:
        if error in RESTART:
            self.member_id = ""
        if error is not ErrorCode.NONE:
            assert error in REJOIN | RESTART | {
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                ErrorCode.MEMBER_ID_REQUIRED,
            }
            self.phase = "join"
        return error is ErrorCode.NONE

    def heard(self, reply) -> None:
        fine = self.check(reply.error)
        if reply.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = reply.member_id
        if not fine:
            return
        if self.phase == "join":
            self.member_id, self.generation = reply.member_id, reply.generation
            plan = {m.member_id: m.member_id.encode() for m in reply.members}
            self.phase = "sync"
            self.waiting = self.world.send_sync(
                self.member_id, self.generation, plan, instance_id=self.instance
            )
        else:
            self.phase = "stable"
            self.assignment = reply.assignment

    def leave(self) -> None:
        self.world.leave(instances=[(self.member_id, self.instance)])


@pytest.mark.parametrize("seed", seeds(12))
def test_members_that_come_go_and_crash_settle_in_one_generation(make_world, seed):
    rng = random.Random(seed)
    world = make_world(initial_rebalance_delay_ms=rng.choice([0, 3000]))
    clients: list[Client] = []
    for turn in range(rng.randrange(40, 120)):
        match rng.randrange(12):
            case 0 | 1 | 2 if len(clients) < 8:
                instance = f"i{turn}" if rng.random() < 0.4 else None
                clients.append(Client(world, f"c{turn}", instance))
            case 3 if clients:
                clients.pop(rng.randrange(len(clients))).leave()
            case 4 if clients:
                crashed = clients.pop(rng.randrange(len(clients)))
                if crashed.instance is not None:
                    clients.append(Client(world, crashed.name, crashed.instance))
            case 5:
                world.hold_writes = rng.random() < 0.7
                world.take([])
            case 6 if world.held:
                world.fail(ErrorCode.NOT_ENOUGH_REPLICAS)
            case 7 if rng.random() < 0.5:
                offset = OffsetToCommit(partition=world.tp("t"), offset=Offset(turn))
                reset = {"offsets": (offset,), "removes_members": True}
                world.send(ResetOffsets, group_id="g", **reset)
        for client in rng.sample(clients, len(clients)):
            if rng.random() < 0.7:
                client.step()
        world.advance(rng.choice([0.0, 0.5, 2.0]))
    clients.append(Client(world, "last", None))
    world.release()
    for _ in range(150):
        for client in clients:
            client.step()
        world.advance(1.0)
    assert world.state() == "Stable", f"seed={seed}"
    group = world.coordinator.describe("g")
    assert {m.member_id for m in group.members} == {c.member_id for c in clients}
    assert len({c.generation for c in clients}) == 1
    for client in clients:
        assert client.phase == "stable"
        # A static member that came back may hold what was assigned to its earlier id.
        expected = client.name if client.instance is None else client.instance
        assert (client.assignment or b"").decode().startswith(f"{expected}-"), f"seed={seed}"
    restarted = world.restarted().coordinator.describe("g")
    assert restarted.members == group.members
