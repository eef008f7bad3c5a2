"""What the commands say of a partition that is offline, and that they do not wait long for it."""

import json
import os
import subprocess
import sys

import pytest

from moldau.cli.errors import ExitCode
from moldau.cli.main import run
from moldau.cli.output import NO_LEADER_HINT
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """A broker with a topic of two partitions, the first of them damaged."""
    with Broker(data_dir=tmp_path_factory.mktemp("damaged") / "data") as broker:
        address = ("-b", broker.bootstrap)
        assert run(["topic", "create", "half", "-p", "2", *address]) == ExitCode.OK
        for partition in ("0", "1"):
            sent = run(["produce", "half", "-m", "a-message", "-p", partition, *address])
            assert sent == ExitCode.OK
        broker.kill()
        (path,) = broker.data_dir.glob("topics/half/*/0/*.log")
        path.write_bytes(path.read_bytes().replace(b"a-message", b"a massage"))
        broker.start()
        yield address


def test_a_description_distinguishes_an_offline_partition_from_an_empty_one(cli, damaged):
    outcome = cli("topic", "describe", "half", *damaged)
    assert outcome.out.startswith(
        "half: 2 partitions, replication factor 1, about 1 message (1 partition offline)\n"
    )
    assert outcome.out.splitlines()[3].split() == ["0", "-", "1", "-", "-", "-", "-"]
    assert outcome.err == f"without a leader: half-0 ({NO_LEADER_HINT})\n"
    document = json.loads(cli("topic", "describe", "half", "-o", "json", *damaged).out)
    assert document["partitions"][0]["leader"] is None
    assert document["partitions"][0]["messages"] is None


READERS = (
    "consume half --from-beginning -e",
    "consume half --offset 0 -e",
    "consume half --offset @-1h -e",
    "consume half --group g -e",
    "tail half --no-follow",
)


@pytest.fixture(scope="module")
def readers(damaged):
    """What each of them says; side by side, since they wait some seconds for a leader."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MOLDAU_")}
    started = {
        reader: subprocess.Popen(
            [sys.executable, "-m", "moldau", *reader.split(), *damaged],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean,
        )
        for reader in READERS
    }
    try:
        return {
            reader: (*process.communicate(timeout=wait_seconds_max()), process.returncode)
            for reader, process in started.items()
        }
    finally:
        for process in started.values():
            process.kill()
            process.communicate()


@pytest.mark.parametrize("reader", READERS)
def test_what_is_online_is_read_and_the_rest_not_waited_for(readers, reader):
    out, err, code = readers[reader]
    assert (code, out) == (0, "a-message\n")
    assert err == f"skipping half-0: no leader ({NO_LEADER_HINT})\n"


def test_an_offline_partition_alone_is_an_error(cli, damaged):
    outcome = cli("consume", "half", "-p", "0", *damaged)
    assert outcome.code == ExitCode.FAILED
    assert outcome.err == (f"error: cannot read half-0: no leader\nhint:  {NO_LEADER_HINT}\n")
