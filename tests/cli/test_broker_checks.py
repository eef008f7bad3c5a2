"""Whether the cluster can do without a broker, by the replicas that are in sync on others."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from http_cluster import partition, topic, topology
from moldau.cli.broker_checks import METADATA, brokers_of_node, needs
from moldau.cli.errors import CommandError
from moldau.model.topology import Topology

pytestmark = pytest.mark.inprocess

ALL = (1, 2, 3)


def cluster(in_sync: tuple[int, ...], replicas: tuple[int, ...] = ALL, *dead: int) -> Topology:
    shown = topology(topic("orders", partition(0, replicas=replicas, in_sync=in_sync)))
    (one,) = shown.brokers
    brokers = tuple(replace(one, id=number, alive=number not in dead) for number in ALL)
    return replace(shown, brokers=brokers)


@pytest.mark.parametrize(
    ("shown", "needed"),
    [
        (cluster(ALL), False),
        (cluster((1, 2)), True),
        (cluster((2, 3)), False),
        (cluster(ALL, ALL, 3), True),
        (cluster((2, 3), (2, 3)), False),
        # Too few replicas to do without any: not waited for.
        (cluster((1,), (1,)), False),
        (cluster((1, 2), (1, 2)), False),
    ],
    ids=["all", "one behind", "itself behind", "one dead", "not its own", "single", "two"],
)
def test_a_broker_is_needed_while_the_others_are_no_majority(shown: Topology, needed: bool) -> None:
    assert bool(needs(shown, 1)) is needed


@pytest.mark.parametrize(
    ("voters", "dead", "needed"),
    [
        (ALL, (), False),
        (ALL, (3,), True),
        (ALL, (1,), False),
        ((2, 3), (3,), False),
        # Too few voters to do without any, and a broker that does not know of voters.
        ((1, 2), (), False),
        ((1,), (), False),
        ((), (3,), False),
    ],
    ids=["all", "one dead", "itself dead", "not its own", "two", "single", "older"],
)
def test_a_broker_is_needed_while_the_other_voters_are_no_majority(
    voters: tuple[int, ...], dead: tuple[int, ...], needed: bool
) -> None:
    """No partition needs it: the others alone would have no controller."""
    shown = replace(cluster((2,), (2,), *dead), voters=voters)
    assert needs(shown, 1) == ([METADATA] if needed else [])


def test_brokers_that_stop_together_are_needed_as_soon_as_one_of_them_is_missed() -> None:
    shown = replace(cluster(ALL, (1, 2, 3)), voters=(3,))
    assert needs(shown, 1) == []
    assert needs(shown, 2) == []
    assert needs(shown, 1, 2) == []
    five = tuple(replace(shown.brokers[0], id=number) for number in range(1, 6))
    wide = replace(cluster((1, 2, 3, 4), (1, 2, 3, 4, 5)), brokers=five, voters=(5,))
    assert needs(wide, 1) == []
    assert needs(wide, 1, 2) == ["orders:0"]


def store(directory: Path, broker: int | None) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    entry = {"broker_id": broker, "cluster_id": broker and "C"}
    (directory / "broker.json").write_text(json.dumps(entry))
    return directory


def test_a_node_is_the_brokers_of_its_directory_and_not_those_of_other_nodes(
    tmp_path: Path,
) -> None:
    """Pods of one chart may share a machine: all its brokers are not the ones that stop."""
    with pytest.raises(CommandError, match="has no broker of a cluster"):
        brokers_of_node(tmp_path)
    store(tmp_path, 1)
    store(tmp_path / "process-2", 4)
    (store(tmp_path / "process-3", 5) / "removed").touch()
    store(tmp_path / "process-4", None)
    assert brokers_of_node(tmp_path) == [1, 4]
    # Of three nodes on one machine, one waits for the others; the whole machine for nothing.
    shown = cluster((1, 2))
    assert needs(shown, 1) == ["orders:0"]
    assert needs(shown, 1, 2, 3) == []
