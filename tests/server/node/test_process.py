"""What the supervisor of a node hands to its processes."""

import io
import pickle

import pytest

from moldau.model.topology import Endpoint
from moldau.server.config.load import load_config
from moldau.server.node.process import (
    _HEAD,
    REMOVED_FILE,
    NodeProcess,
    SharedAddress,
    read_process,
    write_process,
)


def process(*directories: str) -> NodeProcess:
    environment = {
        "MOLDAU_SECURITY__KEY_PASSWORD": "hidden",
        "MOLDAU_LISTENERS": '[{"name": "a", "protocol": "kafka", "address": "127.0.0.1:1"}]',
    }
    return NodeProcess(
        number=2,
        directories=directories,
        config=load_config({}, environment).config,
        shared={"kafka.addr": SharedAddress(Endpoint("h", 1), None)},
        http=Endpoint("h", 2),
        http_port=2,
        parent=3,
    )


def test_a_process_gets_its_whole_configuration_with_the_secrets_in_it():
    given = process("/d", "/d/process-2")
    got = read_process(io.BytesIO(write_process(given)))
    assert got == given
    assert got.config.security.key_password is not None
    assert got.config.security.key_password.reveal() == "hidden"
    assert got.config.listeners[0].name == "a"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "does not hold a process of a node"),
        (b"4\n", "does not hold a process of a node"),
        (pickle.dumps({"number": 2}), "does not hold a process of a node"),
        (_HEAD + pickle.dumps({"number": 2}), "does not hold a process of a node"),
        (_HEAD, "ends too early"),
        (write_process(process("/d"))[:-9], "ends too early"),
    ],
)
def test_anything_else_on_stdin_is_refused(data, reason):
    with pytest.raises(ValueError, match=reason):
        read_process(io.BytesIO(data))


def test_the_others_are_all_but_those_that_left_the_cluster(tmp_path):
    names = [str(tmp_path / name) for name in "abc"]
    for name in names:
        (tmp_path / name).mkdir()
    assert process(*names).others() == [1, 3]
    (tmp_path / "c" / REMOVED_FILE).touch()
    assert process(*names).others() == [1]
