"""What a person at a terminal sees: progress, questions; all of it on stderr, data on stdout."""

import os
import pty
import subprocess

import pytest
from pseudo_terminal import Terminal

from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system


@pytest.fixture
def terminal(spawn):
    opened = []

    def start(*arguments, **options):
        opened.append(Terminal(spawn, *arguments, **options))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def test_bench_shows_a_bar_that_is_gone_in_the_end(terminal, moldau_session_broker):
    brokers = moldau_session_broker.bootstrap
    shown = terminal("bench", "e2e", "-n", "800", "--rate", "500", "-b", brokers)
    shown.read_until("/800")
    code, out = shown.end()
    assert code == 0, shown.seen
    assert out.startswith("e2e: 800 messages")
    assert "\033" not in out


def test_produce_shows_how_far_it_is(terminal, moldau_session_broker):
    brokers = moldau_session_broker.bootstrap
    shown = terminal("produce", "shown", "-b", brokers, stdin=subprocess.PIPE)
    shown.read_until("messages, ", meanwhile=shown.send_line)
    code, out = shown.end()
    assert (code, out) == (0, "")
    assert "to shown" in shown.seen


def test_produce_invites_to_type_and_ctrl_d_ends(terminal, cli, moldau_session_broker):
    brokers = moldau_session_broker.bootstrap
    shown = terminal("produce", "typed", "-b", brokers)
    shown.read_until("Ctrl-D ends")
    shown.type("hello\n\x04")
    shown.read_until("sent 1 message to typed")
    assert shown.end() == (0, "")
    assert cli("consume", "typed", "--from-beginning", "-n", "1", "-b", brokers).out == "hello\n"


@pytest.mark.parametrize(("answer", "code", "left"), [("y", 0, False), ("n", 130, True)])
def test_delete_asks_and_obeys(terminal, cli, moldau_session_broker, answer, code, left):
    brokers = moldau_session_broker.bootstrap
    name = f"asked-{answer}"
    cli("topic", "create", name, "-b", brokers)
    shown = terminal("topic", "delete", name, "-b", brokers)
    shown.read_until(f"Delete {name} with all messages?")
    shown.type(f"{answer}\n")
    assert shown.end() == (code, "")
    names = cli("topic", "list", "-o", "name", "-b", brokers).out.splitlines()
    assert (name in names) is left


def test_queue_send_invites_to_type_and_ctrl_d_ends(terminal, cli, moldau_session_broker, new_name):
    topic, broker = new_name("typed"), moldau_session_broker
    cli("topic", "create", topic, "-b", broker.bootstrap)
    shown = terminal("queue", "send", topic, "--grpc", broker.grpc_address)
    shown.read_until("Ctrl-D ends")
    shown.type("hello\n\x04")
    shown.read_until(f"sent 1 message to {topic}")
    assert shown.end() == (0, "")


def test_queue_send_shows_how_far_it_is(terminal, cli, moldau_session_broker, new_name):
    topic, broker = new_name("shown"), moldau_session_broker
    cli("topic", "create", topic, "-b", broker.bootstrap)
    command = ("queue", "send", topic, "--grpc", broker.grpc_address)
    shown = terminal(*command, stdin=subprocess.PIPE)
    shown.read_until("messages, ", meanwhile=shown.send_line)
    assert shown.end() == (0, "")
    assert f"to {topic}" in shown.seen


@pytest.mark.parametrize(("answer", "code"), [("n\n", 130), ("y\n", 0)])
def test_deleting_a_queue_group_asks_first(
    terminal, cli, moldau_session_broker, new_name, answer, code
):
    topic, group, broker = new_name("asked"), new_name("asked"), moldau_session_broker
    grpc = ("--grpc", broker.grpc_address)
    cli("topic", "create", topic, "-b", broker.bootstrap)
    cli("queue", "send", topic, "a", *grpc)
    cli("queue", "work", topic, "-g", group, "-n", "1", *grpc)
    shown = terminal("queue", "delete", group, *grpc)
    shown.read_until(f"Delete {group}, with a backlog of 0 messages? [y/N]:")
    shown.type(answer)
    assert shown.end()[0] == code
    assert cli("queue", "stats", group, *grpc).code == (4 if code == 0 else 0)


def test_tail_is_coloured_on_a_terminal(spawn, cli, moldau_session_broker, new_name):
    topic, brokers = new_name("coloured"), ("-b", moldau_session_broker.bootstrap)
    cli("produce", topic, "-k", ":", "-m", "key:some value", *brokers)

    def tail(**env):
        controller, end = pty.openpty()
        command = ("tail", topic, "--no-follow", "--print-key", "--grep", "val", *brokers)
        process = spawn(*command, stdout=end, env={"TERM": "xterm", **env})
        process.communicate(timeout=wait_seconds_max())
        os.close(end)
        shown = os.read(controller, 4096).decode()
        os.close(controller)
        return shown

    assert tail() == "\033[36mkey\033[0m\tsome \033[31mval\033[0mue\r\n"
    assert tail(NO_COLOR="1") == "key\tsome value\r\n"
