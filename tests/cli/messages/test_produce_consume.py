"""Messages in and out, against librdkafka's mock cluster: no broker of ours is needed for that."""

import itertools
import json
import signal
import subprocess

import pytest

from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.messages.produce import LineMessage, read_lines, split_lines
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system

_numbers = itertools.count()


@pytest.fixture
def topic(mock_brokers):
    return f"cli-{next(_numbers)}"


@pytest.fixture
def produce(cli, mock_brokers, topic):
    def call(*arguments):
        outcome = cli("produce", topic, "-b", mock_brokers, *arguments)
        assert outcome.code == 0, outcome.err
        return outcome

    return call


@pytest.fixture
def consume(cli, mock_brokers, topic):
    def call(*arguments):
        return cli("consume", topic, "-b", mock_brokers, *arguments)

    return call


def test_lines_become_keys_and_values():
    lines = [b"a:b:c\n", b"plain\r\n", b"k:\n", b"\n", b"last"]
    plain = split_lines(lines, None, key=None, tombstones=False)
    assert [message.value for message in plain] == [b"a:b:c", b"plain", b"k:", b"", b"last"]
    keyed = list(split_lines(lines, ":", key=None, tombstones=True))
    assert keyed[0] == LineMessage(b"a", b"b:c")
    assert keyed[1] == LineMessage(None, b"plain")
    assert keyed[2] == LineMessage(b"k", None)
    fixed = list(split_lines([b"x"], None, key="id", tombstones=False))
    assert fixed == [LineMessage(b"id", b"x")]


def test_a_line_without_end_is_refused_and_not_kept(monkeypatch):
    import io

    monkeypatch.setattr("moldau.cli.messages.produce.LINE_BYTES_MAX", 10)
    assert list(read_lines(io.BytesIO(b"0123456789\n"[1:] + b"b"))) == [b"123456789\n", b"b"]
    with pytest.raises(CommandError, match="longer than"):
        list(read_lines(io.BytesIO(b"x" * 100)))


def test_what_was_produced_is_consumed(produce, consume):
    sent = produce("-k", "=", "-m", "a=1", "-m", "b=2", "-H", "h=x", "-p", "0")
    assert sent.out == ""
    assert "sent 2 messages" in sent.err
    outcome = consume("--from-beginning", "-e", "-o", "json")
    assert outcome.code == 0
    first, second = (json.loads(line) for line in outcome.out.splitlines())
    assert (first["key"], first["value"], first["headers"]) == ("a", "1", [["h", "x"]])
    assert (second["partition"], second["offset"]) == (0, 1)
    assert outcome.err == ""


def test_quiet_is_quiet(produce):
    assert produce("-q", "-m", "x").err == ""


def test_lines_of_a_file_and_of_stdin_are_sent(
    produce, consume, tmp_path, spawn, mock_brokers, topic
):
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\n")
    produce("--file", path, "-p", "0", "--compression", "gzip", "--acks", "1")
    process = spawn("produce", topic, "-b", mock_brokers, "-p", "0", stdin=subprocess.PIPE)
    out, err = process.communicate("three\nfour", timeout=wait_seconds_max())
    assert (process.returncode, out, err) == (0, "", f"sent 2 messages to {topic}\n")
    assert consume("--from-beginning", "-n", "4").out.split() == ["one", "two", "three", "four"]


def test_a_count_stops_and_an_offset_starts(produce, consume):
    produce(*itertools.chain.from_iterable(("-m", f"m{n}") for n in range(10)), "-p", "0")
    assert consume("--from-beginning", "-n", "2").out == "m0\nm1\n"
    assert consume("-p", "0", "--offset", "7", "-e").out == "m7\nm8\nm9\n"
    assert consume("-p", "0", "--offset", "-1", "-e").out == "m9\n"
    assert consume("-p", "0", "--offset", "end", "-e").out == ""
    assert consume("-p", "0", "--offset", "0", "-n", "1", "-f", "%o/%s;").out == "0/m0;"


def test_too_few_messages_in_time_are_an_error_for_scripts(produce, consume):
    produce("-m", "only")
    outcome = consume("--from-beginning", "-n", "5", "--timeout", "4s")
    assert outcome.out == "only\n"
    assert outcome.code == ExitCode.FAILED
    assert "received 1 of 5 messages, then timed out after 4 s" in outcome.err


def test_a_timeout_alone_is_a_normal_end(produce, consume):
    produce("-m", "only")
    outcome = consume("--from-beginning", "--timeout", "4s")
    assert (outcome.code, outcome.out, outcome.err) == (0, "only\n", "")


def test_topic_and_partition_that_do_not_exist(cli, consume, produce, mock_brokers):
    outcome = cli("consume", "no-such-topic", "-b", mock_brokers)
    assert outcome.code == ExitCode.NOT_FOUND
    assert "moldau topic create no-such-topic" in outcome.err
    produce("-m", "x")
    outcome = consume("-p", "99")
    assert outcome.code == ExitCode.NOT_FOUND
    assert "has no partition 99" in outcome.err


def test_options_that_exclude_each_other(consume, cli, mock_brokers, tmp_path):
    assert consume("--from-beginning", "--offset", "3").code == ExitCode.USAGE
    path = tmp_path / "f"
    path.write_text("x")
    assert cli("produce", "t", "-m", "x", "--file", path).code == ExitCode.USAGE


@pytest.mark.safety
def test_how_large_a_message_may_be_is_for_the_topic_to_say(cli, moldau_session_broker, tmp_path):
    brokers = ("-b", moldau_session_broker.bootstrap)
    path = tmp_path / "big"
    path.write_bytes(b"before\n" + b"x" * 2_000_000)
    outcome = cli("produce", "big", *brokers, "--file", path)
    assert outcome.code == ExitCode.FAILED
    assert outcome.err == (
        "error: cannot produce to big: a message of 2,000,000 bytes is larger than "
        "max.message.bytes of the topic (1,048,588)\n"
        "hint:  1 message acknowledged · raise the limit: "
        "moldau topic alter big --config max.message.bytes=N\n"
    )
    assert cli("topic", "alter", "big", "-c", "max.message.bytes=3000000", *brokers).code == 0
    assert cli("produce", "big", *brokers, "--file", path).code == 0


@pytest.mark.safety
def test_after_an_error_what_is_said_to_have_got_through_has(cli, moldau_session_broker, tmp_path):
    brokers = ("-b", moldau_session_broker.bootstrap)
    path = tmp_path / "lines"
    path.write_bytes(b"a\nb\n" + b"x" * 2_000_000 + b"\nc\nd\n")
    outcome = cli("produce", "partly", *brokers, "--file", path)
    assert outcome.code == ExitCode.FAILED
    there = cli("consume", "partly", *brokers, "--from-beginning", "-e").out.split()
    assert f"{len(there)} messages acknowledged" in outcome.err


def test_a_partition_or_topic_that_cannot_be_is_said_before_anything_is_sent(
    cli, moldau_session_broker
):
    brokers = ("-b", moldau_session_broker.bootstrap)
    cli("topic", "create", "two-parts", "-p", "2", *brokers)
    outcome = cli("produce", "two-parts", "-m", "x", "-p", "7", *brokers)
    assert outcome.code == ExitCode.NOT_FOUND
    assert (
        outcome.err
        == "error: topic two-parts has no partition 7\nhint:  it has partitions 0 to 1\n"
    )
    outcome = cli("produce", "no name", "-m", "x", *brokers)
    assert outcome.code == ExitCode.FAILED
    assert outcome.err == "error: cannot produce to no name: Invalid topic\n"


@pytest.mark.safety
def test_a_message_that_the_broker_does_not_take_is_said_to_be_that(cli, moldau_session_broker):
    brokers = ("-b", moldau_session_broker.bootstrap)
    cli("topic", "create", "strict", "-c", "min.insync.replicas=2", *brokers)
    outcome = cli("produce", "strict", "-m", "x", "--timeout", "4s", *brokers)
    assert outcome.code == ExitCode.FAILED
    assert "not acknowledged by" in outcome.err
    assert "min.insync.replicas" in outcome.err


def test_an_offset_outside_of_a_partition_is_its_nearest_end(cli, moldau_session_broker):
    brokers = ("-b", moldau_session_broker.bootstrap)
    cli("produce", "few", "-m", "a", "-m", "b", *brokers)
    outcome = cli("consume", "few", "--offset", "99", "-e", *brokers)
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == "few-0 has offsets 0 to 1; starting at 2\n"
    assert cli("consume", "few", "--offset", "1", "-e", *brokers) == (0, "b\n", "")


def test_a_wrong_property_is_an_error_that_names_it(cli, mock_brokers):
    outcome = cli("produce", "t", "-b", mock_brokers, "-m", "x", "-X", "no.such=1")
    assert outcome.code == ExitCode.FAILED
    assert "no.such" in outcome.err


def test_tail_prints_the_last_over_all_partitions(produce, cli, mock_brokers, topic):
    for number in range(6):
        produce("-m", f"m{number}", "-p", number % 3)
    outcome = cli("tail", topic, "-b", mock_brokers, "-n", "4", "--no-follow")
    assert outcome.out.split() == ["m2", "m3", "m4", "m5"]
    assert cli("tail", topic, "-b", mock_brokers, "-n", "0", "--no-follow").out == ""


def test_tail_of_several_topics_says_where_each_message_is_from(produce, cli, mock_brokers, topic):
    produce("-m", "one")
    other = f"{topic}-other"
    assert cli("produce", other, "-b", mock_brokers, "-m", "two").code == 0
    outcome = cli("tail", topic, other, topic, "-b", mock_brokers, "--no-follow")
    assert outcome.out == f"{topic}\tone\n{other}\ttwo\n"


def test_tail_prints_what_the_filter_lets_through(produce, cli, mock_brokers, topic):
    for number in range(5):
        produce("-m", f'{{"n": {number}}}', "--key", "odd" if number % 2 else "even", "-p", "0")
    produce("-m", "no JSON", "-H", "from=me", "-p", "1")

    def tail(*arguments):
        outcome = cli("tail", topic, "-b", mock_brokers, "--no-follow", *arguments)
        assert outcome.code == 0, outcome.err
        return outcome.out

    assert tail("--filter", ".n>=2 and key=even", "-f", "%o;") == "2;4;"
    assert tail("--filter", "header.from=me") == "no JSON\n"
    assert tail("--grep", "JSON") == "no JSON\n"
    assert tail("--grep", "odd", "--filter", ".n>1", "-f", "%s") == '{"n": 3}'
    assert tail("-n", "2", "--filter", ".n<3") == "", "of the last two, none"


def test_tail_follows_what_the_filter_lets_through(produce, spawn, mock_brokers, topic):
    produce("-m", "a1")
    process = spawn("tail", topic, "-b", mock_brokers, "--filter", "value~^a")
    assert process.stdout.readline() == "a1\n"
    produce("-m", "b2", "-m", "a3")
    assert process.stdout.readline() == "a3\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=wait_seconds_max()) == ("", "")
    assert process.returncode == 0


def test_consume_counts_what_the_filter_lets_through(produce, consume):
    produce(*itertools.chain.from_iterable(("-m", f"m{n}") for n in range(10)), "-p", "0")
    assert consume("--from-beginning", "--filter", "value~[3-9]", "-n", "2").out == "m3\nm4\n"


def test_a_group_does_not_see_again_what_its_filter_left_out(cli, moldau_session_broker, new_name):
    brokers = ("-b", moldau_session_broker.bootstrap)
    topic, group = new_name("filtered"), new_name("filtering")
    cli("produce", topic, "-m", "a", "-m", "b", *brokers)
    first = cli("consume", topic, "--group", group, "--grep", "a", "-e", *brokers)
    assert (first.code, first.out) == (0, "a\n")
    cli("produce", topic, "-m", "c", *brokers)
    assert cli("consume", topic, "--group", group, "-n", "1", *brokers).out == "c\n"


def test_a_wrong_filter_or_format_is_said_before_anybody_is_asked(cli, nobody):
    for command in ("tail", "consume"):
        outcome = cli(command, "t", "-b", nobody, "--filter", "key=a and nothing=3")
        assert outcome.code == ExitCode.USAGE
        assert outcome.err.splitlines()[1:] == [
            "hint:  key=a and nothing=3",
            "                 ^",
        ]
        outcome = cli(command, "t", "-b", nobody, "-f", "%y")
        assert outcome.code == ExitCode.USAGE
        assert "unknown %y in the format" in outcome.err


def test_null_is_shown_on_request(produce, consume):
    produce("--tombstones", "-m", "", "--key", "gone")
    assert consume("--from-beginning", "-e", "-f", "%k=%s;").out == "gone=;"
    assert consume("--from-beginning", "-e", "-Z", "-f", "%k=%s;").out == "gone=NULL;"


def test_tail_follows_until_it_is_interrupted(produce, spawn, mock_brokers, topic):
    produce("-m", "before")
    process = spawn("tail", topic, "-b", mock_brokers)
    assert process.stdout.readline() == "before\n"
    produce("-m", "after")
    assert process.stdout.readline() == "after\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=wait_seconds_max())
    assert (process.returncode, out, err) == (0, "", "")


def test_a_pipe_closed_in_a_silence_is_noticed(produce, spawn, mock_brokers, topic):
    produce("-m", "only")
    process = spawn("consume", topic, "-b", mock_brokers, "--from-beginning")
    assert process.stdout.readline() == "only\n"
    process.stdout.close()
    assert process.wait(wait_seconds_max()) == 0
    assert process.stderr.read() == ""


def test_a_closed_pipe_ends_consume_without_output(produce, spawn, mock_brokers, topic):
    produce("-m", "one", "-m", "two")
    process = spawn("consume", topic, "-b", mock_brokers, "--from-beginning")
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(wait_seconds_max()) == 0
    assert process.stderr.read() == ""
