"""`moldau queue` against a real broker."""

import asyncio
import json
import os
import signal
import subprocess
from datetime import UTC, datetime, timedelta

import pytest

from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.queue.send import BATCH_MESSAGES_MAX, line_batches
from moldau.cli.queue.work import own_environment
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system


@pytest.fixture
def names(new_name):
    """A topic and a group that no other test uses."""
    return new_name("jobs"), new_name("workers")


@pytest.fixture
def address(moldau_session_broker):
    return moldau_session_broker.grpc_address


@pytest.fixture
def queue(cli, address):
    def call(verb, *arguments):
        return cli("queue", verb, "--grpc", address, *arguments)

    return call


@pytest.fixture
def topic(names, cli, moldau_session_broker):
    outcome = cli("topic", "create", names[0], "-p", 2, "-b", moldau_session_broker.bootstrap)
    assert outcome.code == 0, outcome.err
    return names[0]


@pytest.fixture
def group(names):
    return names[1]


@pytest.fixture
def messages(cli, moldau_session_broker):
    """What a topic holds, as Kafka's clients see it."""

    def read(topic):
        brokers = ("-b", moldau_session_broker.bootstrap)
        outcome = cli("consume", topic, "--from-beginning", "-e", "-o", "json", *brokers)
        assert outcome.code == 0, outcome.err
        return [json.loads(line) for line in outcome.out.splitlines()]

    return read


# ---- send


def test_arguments_are_sent_with_key_and_headers(queue, topic, messages):
    outcome = queue("send", topic, "one", "two", "--key", "k", "-H", "a=1", "-H", "b=2")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == f"sent 2 messages to {topic}\n"
    found = messages(topic)
    assert [each["value"] for each in found] == ["one", "two"]
    assert {each["key"] for each in found} == {"k"}
    assert found[0]["headers"] == [["a", "1"], ["b", "2"]]


def test_lines_of_stdin_are_sent_in_any_number(spawn, address, topic, messages):
    process = spawn(
        "queue", "send", topic, "-k", ":", "-q", "--grpc", address, stdin=subprocess.PIPE
    )
    text = "".join(f"key:{number}\n" for number in range(2500)) + "key:last"
    assert process.communicate(text, timeout=wait_seconds_max()) == ("", "")
    assert process.returncode == 0
    found = messages(topic)
    assert [each["value"] for each in found] == [*map(str, range(2500)), "last"]


def test_a_line_that_is_typed_is_sent_before_the_next_one_comes(spawn, address, topic, messages):
    process = spawn("queue", "send", topic, "--grpc", address, stdin=subprocess.PIPE)
    process.stdin.write("first\n")
    process.stdin.flush()
    found = wait_until(lambda: messages(topic), "the line is sent")
    assert [each["value"] for each in found] == ["first"]
    process.send_signal(signal.SIGINT)
    assert process.wait(wait_seconds_max()) == ExitCode.INTERRUPTED, "and Ctrl-C ends the waiting"
    assert "Traceback" not in process.stderr.read()


def test_a_topic_that_does_not_exist_is_not_found_and_how_to_make_it(queue, new_name):
    missing = new_name("missing")
    outcome = queue("send", missing, "x")
    assert outcome.code == ExitCode.NOT_FOUND
    assert "error: " in outcome.err
    assert f"moldau topic create {missing}" in outcome.err


def test_a_message_for_later_is_not_delivered_before(queue, topic, group):
    assert queue("send", topic, "later", "--delay", "1h").code == 0
    next_year = (datetime.now(UTC) + timedelta(days=360)).strftime("%Y-%m-%dT%H:%M")
    assert queue("send", topic, "much later", "--deliver-at", next_year).code == 0
    too_late = queue("send", topic, "never", "--deliver-at", "2100-01-01T00:00")
    assert (too_late.code, "the limit is 366 days" in too_late.err) == (1, True)
    assert queue("send", topic, "now").code == 0
    assert queue("work", topic, "-g", group, "--once").out == "now\n"
    rows = json.loads(queue("peek", topic, "-g", group, "-o", "json").out)
    states = {row["value"]: (row["state"], row["due"] is not None) for row in rows}
    assert states == {"later": ("delayed", True), "much later": ("delayed", True)}


def test_options_of_send_that_make_no_sense(queue, topic):
    assert queue("send", topic, "x", "--delay", "1s", "--deliver-at", "2100-01-01").code == 2
    assert "is not a valid time" in queue("send", topic, "x", "--deliver-at", "soon").err


@pytest.mark.parametrize(
    "arguments",
    [
        ["send", "t", "x"],
        ["work", "t", "-g", "g"],
        ["peek", "t", "-g", "g"],
        ["stats", "g"],
        ["list"],
        ["redrive", "g", "-y"],
        ["delete", "g", "-y"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_an_unreachable_broker_is_an_error_with_the_next_command(cli, nobody, arguments):
    outcome = cli("queue", *arguments, "--grpc", nobody)
    assert outcome.code == ExitCode.UNREACHABLE
    assert outcome.out == ""
    assert outcome.err == (
        f"error: cannot reach {nobody} (connection refused)\n"
        "hint:  no broker running? start one: moldau dev · "
        "other address: --grpc HOST:PORT or MOLDAU_GRPC\n"
    )


def test_the_address_comes_from_the_environment_and_is_checked(cli, nobody, monkeypatch):
    monkeypatch.setenv("MOLDAU_GRPC", nobody)
    assert f"cannot reach {nobody}" in cli("queue", "stats", "g").err
    assert cli("queue", "stats", "g", "--grpc", "localhost:grpc").code == ExitCode.USAGE


def test_brokers_are_found_over_http_and_behind_one_that_is_down(
    cli, nobody, moldau_session_broker, address, group
):
    over_http = f"http://{moldau_session_broker.http_address}"
    for addresses in (over_http, f"{nobody},{address}"):
        outcome = cli("queue", "stats", group, "--grpc", addresses)
        assert outcome.code == ExitCode.NOT_FOUND, "somebody answered"


# ---- work


@pytest.mark.safety
def test_a_command_does_each_message_once(queue, topic, group, tmp_path):
    queue("send", topic, *(f"m{number}" for number in range(7)))
    script = f"read value; echo $value $MOLDAU_ATTEMPT $MOLDAU_GROUP >> {tmp_path}/seen"
    work = ("work", topic, "-g", group, "--once", "-c", "3", "--", "sh", "-c", script)
    outcome = queue(*work)
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == "7 messages done, 0 failed\n"
    seen = sorted((tmp_path / "seen").read_text().splitlines())
    assert seen == [f"m{number} 1 {group}" for number in range(7)]
    assert queue(*work).err == "0 messages done, 0 failed\n"
    assert len((tmp_path / "seen").read_text().splitlines()) == 7


def test_what_fails_comes_again_and_becomes_a_dead_letter_with_its_reason(
    queue, topic, group, messages
):
    queue("send", topic, "poison")
    script = "echo attempt $MOLDAU_ATTEMPT went wrong >&2; exit 1"
    work = ("work", topic, "-g", group, "--attempts", "2", "--retry-delay", "0s")
    outcome = queue(*work, "-n", "2", "--", "sh", "-c", script)
    assert outcome.code == ExitCode.FAILED
    assert "attempt 1: attempt 1 went wrong" in outcome.err
    assert "0 messages done, 2 failed" in outcome.err
    # The topic is not there before its first message.
    found = wait_until(
        lambda: messages(f"{group}.dead"), "there is a dead letter", ignoring=AssertionError
    )
    headers = dict(found[0]["headers"])
    assert found[0]["value"] == "poison"
    assert headers["moldau-dead-reason"] == "attempt 2 went wrong"
    assert headers["moldau-dead-topic"] == topic


def test_a_command_that_takes_too_long_fails(queue, topic, group):
    queue("send", topic, "slow")
    work = ("work", topic, "-g", group, "-n", "1", "--timeout", "200ms", "--", "sleep", "600")
    outcome = queue(*work)
    assert outcome.code == ExitCode.FAILED
    assert "timed out after 0.2 s" in outcome.err


def test_a_lease_is_kept_while_the_command_runs(queue, topic, group, tmp_path):
    queue("send", topic, "slow")
    script = f"echo $MOLDAU_ATTEMPT >> {tmp_path}/seen; sleep 9.5"
    outcome = queue(
        *("work", topic, "-g", group, "--visibility", "8s", "-c", "2", "--once"),
        *("--", "sh", "-c", script),
    )
    assert outcome.err == "1 message done, 0 failed\n"
    assert (tmp_path / "seen").read_text() == "1\n", "nobody else had it meanwhile"


def test_sigterm_lets_the_command_finish_and_leaves_the_rest(
    spawn, queue, address, topic, group, tmp_path
):
    queue("send", topic, "one", "two")
    script = f"echo begun >> {tmp_path}/seen; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    process = spawn(
        *("queue", "work", topic, "-g", group, "--grpc", address, "--", "sh", "-c", script)
    )
    _await_file(tmp_path / "seen")
    process.send_signal(signal.SIGTERM)
    assert (
        process.stderr.readline()
        == "stopping after 1 running command; press Ctrl-C again to kill\n"
    )
    (tmp_path / "go").touch()
    _, err = process.communicate(timeout=wait_seconds_max())
    assert process.returncode == 0, err
    assert "1 message done, 0 failed" in err
    assert queue("work", topic, "-g", group, "--once").out in ("one\n", "two\n")


def test_a_second_signal_ends_the_command_and_gives_its_message_back(
    spawn, queue, address, topic, group, tmp_path
):
    queue("send", topic, "one")
    script = f"echo $$ > {tmp_path}/pid; exec sleep 600"
    process = spawn(
        *("queue", "work", topic, "-g", group, "--grpc", address, "--", "sh", "-c", script)
    )
    _await_file(tmp_path / "pid")
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline().startswith("stopping after 1 ")
    process.send_signal(signal.SIGINT)
    assert process.wait(wait_seconds_max()) == ExitCode.INTERRUPTED
    assert not os.path.exists(f"/proc/{(tmp_path / 'pid').read_text().strip()}")
    assert queue("work", topic, "-g", group, "-n", "1").out == "one\n"


def _await_file(path) -> None:
    wait_until(lambda: path.exists() and path.read_text().strip(), f"{path.name} is written")


@pytest.mark.safety
def test_without_a_command_messages_are_printed_and_acked(queue, topic, group):
    queue("send", topic, "a", "b", "--key", "k")
    assert queue("work", topic, "-g", group, "-n", "1", "-f", "%k=%s;").out == "k=a;"
    outcome = queue("work", topic, "-g", group, "--once", "-o", "json")
    assert json.loads(outcome.out)["value"] == "b"
    assert queue("work", topic, "-g", group, "--once").out == ""


def test_a_command_that_does_not_exist_is_said_before_a_message_is_taken(queue, topic, group):
    queue("send", topic, "a")
    outcome = queue("work", topic, "-g", group, "--", "no-such-command-anywhere")
    assert outcome.code == ExitCode.USAGE
    assert "command not found: no-such-command-anywhere" in outcome.err
    assert queue("work", topic, "-g", group, "--once", "-f", "%s").out == "a"


def test_what_is_said_of_a_message_does_not_reach_a_worker_in_a_worker():
    given = {"PATH": "/bin", "MOLDAU_KEY": "outer", "MOLDAU_GRPC": "here:1"}
    assert own_environment(given) == {"PATH": "/bin", "MOLDAU_GRPC": "here:1"}


# ---- look, redrive, delete


def test_groups_are_listed_with_what_they_have_before_them(queue, topic, group):
    assert queue("list", "--topic", topic).err.startswith(f"no queue groups of {topic}; create one")
    queue("send", topic, "a", "b")
    queue("work", topic, "-g", group, "-n", 1)
    assert group in queue("list", "-o", "name").out.splitlines()
    (found,) = json.loads(queue("list", "--topic", topic, "-o", "json").out)
    assert (found["group"], found["topics"], found["ready"]) == (group, [topic], 1)
    assert found["dead_letter_topic"] == f"{group}.dead"
    assert queue("list", "--topic", topic).out.splitlines()[1].split()[:2] == [group, topic]


def test_the_error_for_an_unknown_group_says_where_groups_are_listed(queue, topic):
    for arguments in (("stats", "none"), ("peek", topic, "-g", "none")):
        outcome = queue(*arguments)
        assert outcome.code == ExitCode.NOT_FOUND
        assert "moldau queue list" in outcome.err


def test_stats_count_what_is_before_a_group(queue, topic, group):
    outcome = queue("stats", group)
    assert outcome.code == ExitCode.NOT_FOUND
    assert outcome.err.startswith(f"error: queue group {group} does not exist\nhint:  ")
    queue("send", topic, *"abcde")
    queue("work", topic, "-g", group, "-n", "2")
    table = queue("stats", group)
    assert table.code == 0
    assert f"{group}: 3 ready, 0 leased, 0 delayed, 0 being dead-lettered" in table.out
    document = json.loads(queue("stats", group, "-o", "json").out)
    assert (document["ready"], document["attempts_max"]) == (3, 5)
    assert document["dead_letter_topic"] == f"{group}.dead"
    assert sum(each["end"] for each in document["partitions"]) == 5
    assert queue("stats", group, "-o", "name").out == f"{group}\n"


def test_stats_are_watched_until_they_are_not(spawn, queue, address, topic, group):
    queue("work", topic, "-g", group, "--once")
    process = spawn("queue", "stats", group, "--watch", "100ms", "-o", "json", "--grpc", address)
    assert json.loads(process.stdout.readline())["ready"] == 0
    queue("send", topic, "a")
    wait_until(lambda: json.loads(process.stdout.readline())["ready"] == 1, "one is ready")
    process.send_signal(signal.SIGINT)
    assert process.wait(wait_seconds_max()) == 0
    assert process.stderr.read() == ""


def test_peek_takes_nothing(queue, topic, group):
    queue("work", topic, "-g", group, "--once")
    assert "no backlog" in queue("peek", topic, "-g", group).err
    queue("send", topic, "a\tb", "--key", "k")
    for _ in range(2):
        (row,) = json.loads(queue("peek", topic, "-g", group, "-o", "json").out)
        assert (row["state"], row["key"], row["value"]) == ("ready", "k", "a\tb")
    head, line = queue("peek", topic, "-g", group).out.splitlines()
    assert head.split()[:3] == ["PARTITION", "OFFSET", "STATE"]
    assert line.endswith("a b"), "on one line"


@pytest.mark.safety
def test_dead_letters_are_shown_and_sent_back_once(queue, topic, group):
    assert queue("redrive", group, "-y").code == ExitCode.NOT_FOUND
    queue("send", topic, "poison", "venom")
    fail = ("--", "sh", "-c", "echo too bad >&2; exit 1")
    assert queue("work", topic, "-g", group, "--attempts", "1", "-n", "2", *fail).code == 1
    _await_dead(queue, group, 2)
    shown = queue("redrive", group, "--dry-run")
    assert "2 messages would be sent back to their original topics" in shown.err
    assert "too bad" in shown.out
    assert f"{topic}-" in shown.out
    refused = queue("redrive", group)
    assert refused.code == ExitCode.USAGE, "nobody is there to say yes"
    assert "confirm with -y" in refused.err
    first = queue("redrive", group, "-n", "1", "-y")
    assert (first.code, first.err.splitlines()[-1]) == (0, "sent 1 message")
    assert queue("redrive", group, "-y").err.splitlines()[-1] == "sent 1 message"
    assert "no dead letters" in queue("redrive", group, "-y").err
    again = queue("work", topic, "-g", group, "-n", "2").out.split()
    assert sorted(again) == ["poison", "venom"]


def _await_dead(queue, group, count: int) -> None:
    wait_until(
        lambda: f"{count} message" in queue("redrive", group, "--dry-run").err,
        f"dead letters are there: {count}",
    )


def test_dead_letters_can_be_sent_to_another_topic(queue, topic, group, cli, moldau_session_broker):
    other = f"{topic}-retry"
    cli("topic", "create", other, "-b", moldau_session_broker.bootstrap)
    queue("send", topic, "poison")
    queue("work", topic, "-g", group, "--attempts", "1", "-n", "1", "--", "false")
    _await_dead(queue, group, 1)
    assert queue("redrive", group, "--to", other, "-y").code == 0
    assert queue("work", other, "-g", f"{group}-2", "-n", "1").out == "poison\n"
    assert queue("work", topic, "-g", group, "--once").out == ""
    # Of a deleted group nobody knows the topics, and what dead letters say may be made up.
    queue("delete", group, "-y")
    for more in (["--dry-run"], ["-y"]):
        refused = queue("redrive", group, *more)
        assert refused.code == ExitCode.NOT_FOUND
        assert "--to TOPIC" in refused.err


def test_a_group_is_deleted_after_confirmation_and_starts_from_scratch(queue, topic, group):
    queue("send", topic, "a")
    assert queue("work", topic, "-g", group, "-n", "1").out == "a\n"
    assert queue("delete", group).code == ExitCode.USAGE
    outcome = queue("delete", group, "-y")
    assert (outcome.code, outcome.err) == (0, f"deleted queue group {group}\n")
    missing = queue("delete", group, "-y")
    assert missing.code == ExitCode.NOT_FOUND
    assert "nothing was deleted" in missing.err
    assert queue("delete", group, "-y", "--if-exists").code == 0
    assert queue("work", topic, "-g", group, "-n", "1").out == "a\n"


def test_several_groups_are_deleted_or_none(queue, topic, group):
    other = f"{group}-2"
    for name in (group, other):
        queue("work", topic, "-g", name, "--once")
    assert queue("delete", group, "no-such-group", "-y").code == ExitCode.NOT_FOUND
    assert queue("stats", group).code == 0, "nothing was deleted"
    deleted = queue("delete", group, other, "-y")
    assert deleted.err == f"deleted queue group {group}\ndeleted queue group {other}\n"


def test_a_queue_group_is_named_as_such_to_a_consumer(
    cli, queue, topic, group, moldau_session_broker
):
    brokers = moldau_session_broker.bootstrap
    queue("work", topic, "-g", group, "--once")
    refused = cli("consume", topic, "-g", group, "--timeout", "9s", "-b", brokers)
    assert refused.code == ExitCode.FAILED
    assert f"cannot join {group}: it is a queue group" in refused.err
    assert f"moldau queue work {topic} -g {group}" in refused.err


# ---- lines


async def test_lines_come_in_batches_and_the_last_needs_no_end(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(2500)) + b"last")
    with open(path, "rb") as file:
        batches = [batch async for batch in line_batches(file.fileno())]
    assert max(map(len, batches)) == BATCH_MESSAGES_MAX
    found = [line for batch in batches for line in batch]
    assert found == [*(b"%d" % number for number in range(2500)), b"last"]


async def test_a_line_in_pieces_is_one_line():
    reader, writer = os.pipe()
    source = line_batches(reader)
    reading = asyncio.ensure_future(anext(source))
    for piece in (b"he", b"llo", b"\nnext"):
        os.write(writer, piece)
        await asyncio.sleep(0.02)
    assert await reading == [b"hello"]
    os.close(writer)
    assert [batch async for batch in source] == [[b"next"]]
    os.close(reader)


async def test_a_line_without_end_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr("moldau.cli.queue.send.LINE_BYTES_MAX", 100)
    path = tmp_path / "lines"
    path.write_bytes(b"x" * 1000)
    with open(path, "rb") as file, pytest.raises(CommandError, match="longer than"):
        await anext(line_batches(file.fileno()))
