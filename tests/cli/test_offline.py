"""What the commands say of a partition that is offline, and that they do not wait long for it."""

import json

import pytest

from moldau.cli.errors import ExitCode
from moldau.cli.output import NO_LEADER_HINT
from moldau.testing.broker import Broker

pytestmark = pytest.mark.system


@pytest.fixture
def damaged(cli, tmp_path):
    """A broker with a topic of two partitions, the first of them damaged."""
    with Broker(data_dir=tmp_path / "data") as broker:
        address = ("-b", broker.bootstrap)
        cli("topic", "create", "half", "-p", "2", *address)
        for partition in (0, 1):
            assert cli("produce", "half", "-m", "a-message", "-p", partition, *address).code == 0
        broker.kill()
        (path,) = broker.data_dir.glob("topics/half/*/0/*.log")
        path.write_bytes(path.read_bytes().replace(b"a-message", b"a massage"))
        broker.start()
        yield address


def test_a_description_tells_an_offline_partition_from_an_empty_one(cli, damaged):
    outcome = cli("topic", "describe", "half", *damaged)
    assert outcome.out.startswith(
        "half: 2 partitions, replication factor 1, about 1 message (1 partition offline)\n"
    )
    assert outcome.out.splitlines()[3].split() == ["0", "-", "1", "-", "-", "-", "-"]
    assert outcome.err == f"without a leader: half-0 ({NO_LEADER_HINT})\n"
    document = json.loads(cli("topic", "describe", "half", "-o", "json", *damaged).out)
    assert document["partitions"][0]["leader"] is None
    assert document["partitions"][0]["messages"] is None


@pytest.mark.parametrize(
    "arguments",
    [
        ["consume", "half", "--from-beginning", "-e"],
        ["consume", "half", "--offset", "0", "-e"],
        ["consume", "half", "--offset", "@-1h", "-e"],
        ["consume", "half", "--group", "g", "-e"],
        ["tail", "half", "--no-follow"],
    ],
    ids=" ".join,
)
def test_what_is_online_is_read_and_the_rest_not_waited_for(spawn, damaged, arguments):
    process = spawn(*arguments, *damaged)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "a-message\n")
    assert err == f"without a leader, left out: half-0 ({NO_LEADER_HINT})\n"


def test_an_offline_partition_alone_is_an_error(cli, damaged):
    outcome = cli("consume", "half", "-p", "0", *damaged)
    assert outcome.code == ExitCode.FAILED
    assert outcome.err == (f"error: cannot read half-0: no leader\nhint:  {NO_LEADER_HINT}\n")
