"""The client that reads dead letters at the end of a world reads all of them."""

from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from moldau.proto.v1 import queue_pb2 as pb
from sim.clients.queue_admin import QueueAdmin
from sim.clients.queue_wire import QueueWire, Refused
from sim.clients.queue_worker import ATTEMPTS_MAX, GROUP, POISON, TOPIC, Board
from sim.cluster import GRPC_PORT
from sim.node import Node
from sim.plan import Plan
from sim.process import ClientProcess
from sim.world import World

DEAD_TOPIC = f"{GROUP}.dead"


@pytest.fixture
def world() -> Iterator[World]:
    """With gRPC, and nobody at work."""
    world = World(Plan(seed=7, producers=0, partitions=1, queue_workers=1))
    world.workloads = []
    world.begin()
    yield world
    world.close()


def address_of(node: Node) -> str:
    return f"{node.address}:{GRPC_PORT}"


def do(world: World, process: ClientProcess, work: Coroutine[Any, Any, Any]) -> Any:
    task = process.run(work)
    world.wait(task.done, "it did not end")
    return task.result()


async def die_once(world: World, wire: QueueWire, process: ClientProcess) -> None:
    """One dead letter, in a topic that was created just now."""
    letter = pb.OutgoingMessage(value=b"s1:7")
    for name, value in (
        ("topic", TOPIC),
        ("partition", "0"),
        ("offset", "7"),
        ("attempts", str(ATTEMPTS_MAX)),
        ("reason", POISON),
    ):
        letter.headers.add(key=f"moldau-dead-{name}", value=value.encode())
    requests = [
        ("CreateTopic", pb.CreateTopicRequest(topic=DEAD_TOPIC, partitions=1)),
        ("Send", pb.SendRequest(topic=DEAD_TOPIC, message=letter, timeout_ms=5000)),
    ]
    for method, request in requests:
        while True:
            try:
                await wire.call_any(method, request)
                break
            except Refused as error:
                if error.reason == "TOPIC_EXISTS":
                    break
            await world.scene.pause(process.rng, 0.3)


def test_dead_letters_are_found_while_a_broker_does_not_know_their_topic(world: World) -> None:
    *others, late = world.nodes
    for other in others:
        world.network.cut(other.address, late.address)
        world.network.cut(late.address, other.address)
    process = world.scene.process("queue-admin")
    wire = QueueWire(lambda: [address_of(node) for node in others], process.rng)
    do(world, process, die_once(world, wire, process))

    # Each time, chance may ask the broker that is behind first.
    for _ in range(10):
        board = Board(lambda: [address_of(node) for node in world.nodes], partitions=1)
        admin = QueueAdmin(world.scene, process, board, has_queue=True, has_ordered=False)
        before = world.scene.counts["dead letters"]
        do(world, process, admin._again(admin._read_dead))
        assert world.scene.counts["dead letters"] > before

    assert late.server is not None
    assert late.server._metadata.image.topic(DEAD_TOPIC) is None
    found = {(each["tp"], each["o"]) for each in world.scene.history if each["op"] == "x-dead"}
    assert found == {(f"{TOPIC}/0", 7)}
