"""How Kafka is configured, found in the cache and described; nothing of it is started."""

from pathlib import Path

import pytest

from benchmarks.apache_kafka import (
    WANTED,
    Ports,
    cached,
    cluster_id,
    java_version,
    pom,
    properties,
    version_in,
)

ONE = [Ports(kafka=9092, controller=9093)]
THREE = [Ports(kafka=1000 + at, controller=2000 + at) for at in range(3)]
DATA = Path("/bench/data")


def test_one_node_is_controller_and_broker_on_loopback_with_kafkas_flush() -> None:
    found = properties(1, ONE, DATA, "never")
    assert found["process.roles"] == "broker,controller"
    assert found["controller.quorum.voters"] == "1@127.0.0.1:9093"
    assert found["listeners"] == "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093"
    assert found["log.dirs"] == "/bench/data"
    assert found["transaction.state.log.replication.factor"] == "1"
    assert found["min.insync.replicas"] == "1"
    assert not [name for name in found if "flush" in name]


def test_always_flushes_each_message_before_the_reply() -> None:
    assert properties(1, ONE, DATA, "always")["log.flush.interval.messages"] == "1"


def test_a_policy_of_ours_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="interval"):
        properties(1, ONE, DATA, "interval")


def test_three_nodes_know_each_other_and_write_with_a_majority() -> None:
    nodes = [properties(node, THREE, DATA, "never") for node in (1, 2, 3)]
    voters = "1@127.0.0.1:2000,2@127.0.0.1:2001,3@127.0.0.1:2002"
    assert {node["controller.quorum.voters"] for node in nodes} == {voters}
    assert [node["node.id"] for node in nodes] == ["1", "2", "3"]
    assert nodes[2]["advertised.listeners"] == "PLAINTEXT://127.0.0.1:1002"
    assert nodes[0]["min.insync.replicas"] == "2"
    assert nodes[0]["offsets.topic.replication.factor"] == "3"
    assert nodes[0]["transaction.state.log.min.isr"] == "2"


def test_an_id_of_a_cluster_is_22_characters_and_no_option() -> None:
    ids = [cluster_id() for _ in range(300)]
    assert {len(one) for one in ids} == {22}
    assert not [one for one in ids if one.startswith("-")]


def test_the_wanted_version_is_preferred_to_a_newer_one_in_the_cache(tmp_path: Path) -> None:
    assert cached(tmp_path) is None
    (tmp_path / "4.9.0").mkdir()
    assert cached(tmp_path) == tmp_path / "4.9.0"
    (tmp_path / WANTED).mkdir()
    assert cached(tmp_path) == tmp_path / WANTED


def test_a_version_is_that_of_the_jar_of_the_broker(tmp_path: Path) -> None:
    for name in ("kafka-clients-4.1.0.jar", "scala-library-2.13.18.jar"):
        (tmp_path / name).touch()
    assert version_in(tmp_path) is None
    (tmp_path / "kafka_2.13-4.1.0.jar").touch()
    assert version_in(tmp_path) == "4.1.0"


def test_the_project_depends_on_the_broker_in_the_version_asked_for() -> None:
    text = pom("[4.0,5.0)")
    assert "<artifactId>kafka_2.13</artifactId><version>[4.0,5.0)</version>" in text


def test_the_version_of_java_is_in_its_first_line() -> None:
    assert java_version('openjdk version "17.0.15" 2025-04-15\nOpenJDK') == "17.0.15"
    assert java_version("no such program") == "unknown"
