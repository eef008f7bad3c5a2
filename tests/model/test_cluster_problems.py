"""What is wrong with a cluster, and what remedies it: one table for brokers and command line."""

from moldau.model.cluster_problems import (
    Condition,
    Problem,
    Tally,
    condition_of,
    not_ready,
    of_its_disk,
    of_offline_replicas,
    problems,
    sentence,
)
from moldau.model.topology import (
    Endpoint,
    Topology,
    TopologyBroker,
    TopologyPartition,
    TopologyTopic,
)


def tallied(*partitions: tuple[str, int, list[int]], down: tuple[int, ...] = ()) -> Condition:
    """Partitions with replicas on brokers 1 to 3: topic, leader, missing."""
    tally = Tally()
    for topic, leader, missing in partitions:
        tally.add(topic, leader, (1, 2, 3), missing)
    return tally.condition(controller=1, down=down)


def test_a_healthy_cluster_has_no_problems():
    assert problems(tallied(("t", 1, []))) == []
    assert sentence([], 3, 1) == (
        "all 3 brokers respond, 1 partition has a leader and all its replicas in sync"
    )
    assert sentence([], 1, 0) == "the broker responds; there are no partitions yet"


def test_a_dead_broker_is_named_with_what_it_leaves_behind():
    found = problems(tallied(("t", 1, [3]), ("u", 2, [3]), ("u", -1, [1, 3]), down=(3,)))
    assert [each.text for each in found] == [
        "broker 3 is not alive",
        "1 partition without a leader",
        "3 partitions under-replicated",
    ]
    assert [each.broker for each in found] == [3, None, None]
    assert found[1].remedy == "start broker 3"
    assert sentence(found, 3, 3).startswith("broker 3 is not alive; 1 partition without a leader;")
    # Who reports it otherwise leaves it out.
    assert len(problems(tallied(("t", 1, []), down=(3,)), known_down={3})) == 0


def test_without_a_dead_broker_the_topic_is_named():
    (found,) = problems(tallied(("t", 1, []), ("u", -1, [])))
    assert (found.topic, found.remedy) == ("u", "see its replicas: moldau topic describe u")


def test_the_topology_is_judged_the_same_way():
    brokers = tuple(
        TopologyBroker(
            id=number,
            kafka=Endpoint("h", number),
            alive=number < 3,
            epoch=1,
            leaders=0,
            replicas=1,
        )
        for number in (1, 2, 3)
    )
    parts = tuple(
        TopologyPartition(
            partition=index,
            leader=leader,
            leader_epoch=1,
            replicas=(1, 2, 3),
            in_sync=in_sync,
        )
        for index, (leader, in_sync) in enumerate([(1, (1, 2)), (-1, ())])
    )
    topology = Topology(
        cluster_id="c",
        version=1,
        controller=1,
        answered_by=1,
        brokers=brokers,
        topics=(TopologyTopic(name="t", id="", partitions=parts),),
    )
    found = condition_of(topology)
    assert problems(found) == problems(tallied(("t", 1, [3]), ("t", -1, [1, 2, 3]), down=(3,)))
    assert (found.topics, found.partitions) == (1, 2)


def test_what_a_broker_says_of_itself():
    assert not_ready(2, ["the disk is full"]) == [
        Problem("broker 2: the disk is full", "check it: moldau broker status 2", 2)
    ]
    assert of_its_disk(2, 50, 100) == of_its_disk(2, None, 100) == of_its_disk(2, 0, 0) == []
    assert of_its_disk(2, 5, 100)[0].text == "the disk of broker 2 is 95% full"
    assert of_offline_replicas(2, 0) == []
    assert of_offline_replicas(2, 3)[0].text == "broker 2: 3 replicas offline"
