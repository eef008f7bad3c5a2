"""Worlds in which brokers share machines, and the rules of them."""

import pytest
from effort import seeds
from msgspec.structs import replace

from moldau.metadata.apply import apply_all
from moldau.metadata.commands import CreateCluster, CreateTopic, RegisterBroker
from moldau.metadata.decide import decide
from moldau.metadata.image import EMPTY_IMAGE, Image
from moldau.model.ids import BrokerId, TopicId
from sim.__main__ import run_one
from sim.machines import crowded, rules_alone
from sim.plan import Plan


@pytest.mark.parametrize("seed", seeds(4))
def test_two_brokers_on_each_of_three_machines_keep_the_rules(seed: int) -> None:
    drawn = Plan.draw(seed, 8.0)
    plan = replace(drawn, brokers=6, replication=3, per_machine=2, bootstrap_brokers=0)
    _, failure = run_one(plan)
    assert failure is None, f"seed={seed}: {failure}"


def image_of(*machines: str) -> Image:
    image = apply_all(EMPTY_IMAGE, decide(CreateCluster(cluster_id="c"), EMPTY_IMAGE))
    for number, machine in enumerate(machines, 1):
        command = RegisterBroker(
            id=BrokerId(number), host="h", port=1, incarnation=f"d{number}", machine=machine
        )
        image = apply_all(image, decide(command, image))
    return image


@pytest.mark.parametrize(
    ("machines", "replicas", "is_crowded"),
    [
        ("aab", (1, 2), True),
        ("aab", (1, 3), False),
        ("aab", (1, 2, 3), False),
        ("aa", (1, 2), False),
        ("aabc", (1, 2, 3), True),
    ],
)
def test_two_replicas_share_a_machine_only_where_none_is_free(
    machines: str, replicas: tuple[int, ...], is_crowded: bool
) -> None:
    before = image_of(*machines)
    topic = CreateTopic(name="t", topic_id=TopicId(bytes(15) + b"\x07"), assignments={0: replicas})
    now = apply_all(before, decide(topic, before))
    assert crowded(before, now) == (["t-0"] if is_crowded else [])
    assert crowded(now, now) == []


def test_a_majority_of_voters_on_one_of_several_machines_is_against_the_rules() -> None:
    shared, alone = image_of(*"aabb"), image_of(*"aa")
    one, two, three = map(BrokerId, (1, 2, 3))
    assert rules_alone((one, two, three), shared)
    assert not rules_alone((one, three), shared)
    assert not rules_alone((one, two), alone)
