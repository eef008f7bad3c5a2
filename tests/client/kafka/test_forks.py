"""A forked process has pictures of its parent's clients, and is told so."""

import subprocess
import sys

import pytest

from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system

FORKED = """
import os, sys
from moldau import ClientError, Consumer, Producer
from moldau.testing.waiting import wait_seconds_max

producer = Producer(sys.argv[1], linger_ms=60_000)
first = producer.send(sys.argv[2], "a")
producer.flush(wait_seconds_max())
first.result()
pending = producer.send(sys.argv[2], "b")
consumer = Consumer(sys.argv[1], group_id=sys.argv[2])
consumer.subscribe(sys.argv[2])
consumer.poll(wait_seconds_max())
child = os.fork()
if child == 0:
    for call in (
        lambda: producer.send(sys.argv[2], "c"), producer.flush, pending.result,
        consumer.poll, consumer.commit, lambda: next(iter(consumer)),
    ):
        try:
            call()
            print("no error")
        except ClientError as error:
            print(error, "|", error.hint)
    producer.close()
    consumer.close()
    # One of its own works, and the end of the process waits for nobody.
    with Producer(sys.argv[1]) as own:
        own.send(sys.argv[2], "child")
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
producer.flush(wait_seconds_max())
print(pending.result().offset >= 1)
producer.close()
consumer.close()
"""


def test_a_child_learns_that_its_clients_are_its_parents_and_ends(
    moldau_session_broker: Broker, moldau_topic: str
) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error", "-c", FORKED),
            *(moldau_session_broker.bootstrap, moldau_topic),
        ],
        capture_output=True,
        text=True,
        timeout=wait_seconds_max(),
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 8
    for line in lines[:6]:
        assert "before the fork" in line
        assert "create one in each process" in line
    assert lines[6:] == ["0", "True"]
