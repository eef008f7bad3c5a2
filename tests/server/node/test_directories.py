"""The data directories of the processes of a node."""

import json

import pytest

from moldau.model.errors import ConfigError
from moldau.server.node.directories import (
    Stored,
    check_directories,
    directory_of,
    machine_of,
    processes_needed,
    stored_processes,
)
from moldau.server.node.process import REMOVED_FILE


def store(root, number, broker, cluster="C"):
    directory = directory_of(root, number)
    directory.mkdir(parents=True, exist_ok=True)
    entry = {"broker_id": broker, "cluster_id": cluster, "directory_id": "d"}
    (directory / "broker.json").write_text(json.dumps(entry))
    return directory


def check(root, count):
    check_directories(root, stored_processes(root), count)


def test_the_root_is_the_directory_of_the_first_process(tmp_path):
    assert directory_of(tmp_path, 1) == tmp_path
    assert directory_of(tmp_path, 12) == tmp_path / "process-12"


def test_a_node_goes_from_one_process_to_several_without_moving_data(tmp_path):
    store(tmp_path, 1, 7)
    assert stored_processes(tmp_path) == {1: Stored(7, "C", False)}
    check(tmp_path, 4)


def test_a_new_root_holds_nothing_nor_does_one_that_cannot_be_read(tmp_path):
    assert stored_processes(tmp_path) == {}
    assert stored_processes(tmp_path / "missing") == {}
    (tmp_path / "process-01").mkdir()
    (tmp_path / "process-1").mkdir()
    (tmp_path / "process-x").mkdir()
    assert stored_processes(tmp_path) == {}


@pytest.mark.safety
def test_fewer_processes_than_the_root_has_brokers_are_refused_with_the_way_to_go(tmp_path):
    store(tmp_path, 1, 1)
    store(tmp_path, 3, 9)
    assert processes_needed(stored_processes(tmp_path)) == 3
    with pytest.raises(ConfigError, match="replicas of broker 9 in process-3 would be") as refused:
        check(tmp_path, 2)
    assert "--processes 3" in refused.value.hint
    assert "moldau broker remove 9" in refused.value.hint
    check(tmp_path, 3)


def test_a_broker_that_left_the_cluster_is_not_missed(tmp_path):
    store(tmp_path, 1, 1)
    (store(tmp_path, 2, 2) / REMOVED_FILE).touch()
    check(tmp_path, 1)
    assert processes_needed(stored_processes(tmp_path)) == 1


def test_a_directory_that_never_joined_is_not_missed(tmp_path):
    store(tmp_path, 1, 1)
    store(tmp_path, 2, None, cluster=None)
    check(tmp_path, 1)


@pytest.mark.safety
def test_a_broker_whose_file_cannot_be_read_is_missed(tmp_path):
    store(tmp_path, 2, 2)
    (tmp_path / "process-2" / "broker.json").write_text("{")
    with pytest.raises(ConfigError, match="would be missing"):
        check(tmp_path, 1)


def test_directories_of_two_clusters_are_refused(tmp_path):
    store(tmp_path, 1, 1, "ours")
    store(tmp_path, 2, 5, "theirs")
    with pytest.raises(
        ConfigError, match=r"mixes two clusters: .* belongs to ours, and .*process-2"
    ):
        check(tmp_path, 2)


def test_the_processes_share_what_the_first_one_keeps_as_its_machine(tmp_path):
    assert machine_of(tmp_path / "new", "host") == "host"
    (tmp_path / "machine").write_text("first\n")
    assert machine_of(tmp_path, "host") == "first"
