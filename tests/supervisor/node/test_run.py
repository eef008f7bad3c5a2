"""What a node says of itself when it is ready."""

import json

import pytest

from moldau.server.config.load import load_config
from moldau.server.node.plan import make_plan
from moldau.server.node.sockets import SharedSockets
from moldau.supervisor.child import Child
from moldau.supervisor.node.run import ready_line, warn_of_files

pytestmark = pytest.mark.system


def test_the_ready_line_names_the_addresses_of_the_node_and_its_brokers(tmp_path):
    listeners = [
        {"name": name, "protocol": protocol, "address": "127.0.0.1:0"}
        for name, protocol in (("first", "kafka"), ("second", "kafka"), ("web", "http"))
    ]
    flags = {"listeners": json.dumps(listeners), "grpc.addr": "", "data_dir": str(tmp_path)}
    plan = make_plan(load_config(flags, {}).config, 2)
    children = [Child(["true"]), Child(["true"])]
    for number, child in enumerate(children, 4):
        child.broker_id, child.cluster_id = number, "C"
    with SharedSockets(plan) as sockets:
        kafka = sockets.addresses["listeners.first"].address
        web = sockets.addresses["listeners.web"].address
        line = ready_line(plan, sockets, children)
    for child in children:
        while child.poll() is None:
            child.read()
        child.close()
    assert f"ready on {kafka} (2 processes, brokers 4, 5, cluster C, data in {tmp_path})" in line
    assert f"HTTP http://{web}" in line
    assert "gRPC" not in line


def test_it_warns_of_too_few_files_with_the_number_that_has_room(tmp_path, caplog):
    config = load_config({"data_dir": str(tmp_path), "processes": "12"}, {}).config
    warn_of_files(config, 12, 1024)
    warn_of_files(config, 12, None)
    assert not caplog.records
    warn_of_files(config, 12, 200)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "processes is 12 and starts 12, but each may open 200 files (ulimit -n)" in caplog.text
    assert "which has room for 10 with 0 partitions" in caplog.text
