"""The tree of commands: help, errors, exit codes, start time."""

import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

import moldau
from moldau.cli.errors import ExitCode
from moldau.cli.main import cli as root
from moldau.model.compiled import described
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system

HEAVY = (
    *("rich", "confluent_kafka", "asyncio", "grpc", "moldau.server", "yaml", "msgspec"),
    *("pyspark", "pyarrow", "numpy", "pandas"),
)


def walk(command, path=("moldau",)):
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path[-1])
        for name in command.list_commands(context):
            yield from walk(command.get_command(context, name), (*path, name))


TREE = list(walk(root))
IDS = [" ".join(path) for path, _ in TREE]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["topic", "--help"],
        ["queue", "--help"],
        ["pipeline", "--help"],
        ["pipeline", "run", "--help"],
        ["pipeline", "run", "audit", "--help"],
    ],
    ids=" ".join,
)
def test_help_imports_nothing_heavy(arguments):
    code = (
        "import sys; from moldau.cli.main import run; run(sys.argv[1:]);"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=wait_seconds_max(),
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr


@pytest.mark.parametrize(("path", "command"), TREE, ids=IDS)
def test_every_help_page_says_what_it_does_and_has_three_examples(path, command, cli):
    outcome = cli(*path[1:], "--help")
    assert outcome.code == 0
    assert len(command.examples) == 3
    for example in command.examples:
        assert example in outcome.out
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not isinstance(parameter.type, click.Choice):
            assert parameter.help or parameter.name in ("messages", "partitions"), parameter.name


@pytest.mark.parametrize(
    "example", sorted({example for _, command in TREE for example in command.examples})
)
def test_every_example_is_understood(example):
    words = shlex.split(re.sub(r"^sudo -u \S+ ", "", example), comments=True)
    while "moldau" in words:
        words = words[words.index("moldau") + 1 :]
        ends = [number for number, word in enumerate(words) if word in ("|", ">", "&&")]
        arguments = words[: ends[0]] if ends else words
        parse(root, [re.sub(r"\)$", "", argument) for argument in arguments])


def parse(command, arguments):
    """As click does before it calls a command; raises UsageError. Files need not exist."""
    for number, word in enumerate(arguments[:-1]):
        if re.fullmatch(r"--([a-z-]+-)?file", word):
            arguments[number + 1] = __file__
    context = command.make_context("moldau", list(arguments))
    while isinstance(command, click.Group):
        _, command, rest = command.resolve_command(context, [*context._protected_args])
        context = command.make_context(command.name, [*rest, *context.args], parent=context)
    return context


def test_an_example_that_is_wrong_would_be_noticed():
    with pytest.raises(click.UsageError):
        parse(root, ["topic", "create", "--no-such-option"])


def test_the_version_is_that_of_the_package(cli):
    assert cli("--version").out == f"moldau {moldau.__version__} ({described()})\n"


def test_a_mistyped_command_gets_a_suggestion(cli):
    outcome = cli("tpoic")
    assert outcome.code == ExitCode.USAGE
    assert outcome.err == (
        "error: no such command: moldau tpoic\nhint:  did you mean `moldau topic`?\n"
    )
    assert "did you mean `moldau topic create`?" in cli("topic", "craete", "x").err


def test_wrong_usage_points_to_the_help(cli):
    outcome = cli("topic", "create")
    assert outcome.code == ExitCode.USAGE
    assert outcome.out == ""
    assert "hint:  see: moldau topic create --help" in outcome.err


def test_wrong_usage_is_one_line_even_where_there_are_choices(cli):
    outcome = cli("completion")
    assert outcome.err.count("error:") == 1
    assert "bash, zsh, fish" in outcome.err


def test_no_summary_in_a_list_of_commands_is_cut(cli):
    for group in ("broker", "topic", "queue", "pipeline", "group", "config", "bench"):
        assert "..." not in cli(group, "-h").out.split("Commands:")[1]


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_a_closed_standard_stream_is_the_null_device(moldau_session_broker, closed):
    arguments = ["produce", "closed-streams", "-b", moldau_session_broker.bootstrap]
    redirects = " ".join(f"{number}{'<' if number == 0 else '>'}&-" for number in closed)
    for command in (arguments, ["topic", "list", *arguments[2:]]):
        line = f'"$0" -m moldau "$@" {redirects}'
        done = subprocess.run(
            ["sh", "-c", line, sys.executable, *command],
            input="",
            capture_output=True,
            text=True,
            timeout=wait_seconds_max(),
            check=False,
        )
        assert done.returncode == 0
        assert "Traceback" not in done.stderr


def test_no_file_of_ours_gets_the_number_of_a_closed_standard_stream(tmp_path):
    code = (
        "import os\n"
        "from moldau.cli.main import open_standard_streams\n"
        "open_standard_streams()\n"
        f"number = os.open({str(tmp_path / 'log')!r}, os.O_CREAT | os.O_WRONLY)\n"
        "os._exit(0 if number > 2 else 1)\n"
    )
    line = '"$0" -c "$1" 0<&- 1>&- 2>&-'
    assert subprocess.run(["sh", "-c", line, sys.executable, code], check=False).returncode == 0


def test_no_command_prints_the_help_as_an_error(cli):
    outcome = cli()
    assert outcome.code == ExitCode.USAGE
    assert "Commands:" in outcome.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "list"],
        ["topic", "create", "t"],
        ["topic", "delete", "t", "-y"],
        ["group", "list"],
        ["group", "describe", "g"],
        ["produce", "t", "-m", "x"],
        ["consume", "t"],
        ["tail", "t"],
        ["pipeline", "status", "p"],
        ["bench", "produce"],
    ],
    ids=" ".join,
)
def test_an_unreachable_broker_is_an_error_with_the_next_command(cli, nobody, arguments):
    outcome = cli(*arguments, "-b", nobody)
    assert outcome.code == ExitCode.UNREACHABLE
    assert outcome.out == ""
    assert outcome.err == (
        f"error: cannot reach {nobody} (connection refused)\n"
        "hint:  no broker running? start one: moldau dev · "
        "other address: -b HOST:PORT or MOLDAU_BROKERS\n"
    )


def test_brokers_come_from_the_environment_and_a_flag_wins(cli, nobody, monkeypatch):
    monkeypatch.setenv("MOLDAU_BROKERS", nobody)
    assert f"cannot reach {nobody}" in cli("topic", "list").err
    assert "cannot reach [::1]:1 " in cli("topic", "list", "-b", "[::1]:1").err


def test_a_host_that_does_not_exist_and_an_address_that_is_none(cli):
    assert "(no such host)" in cli("topic", "list", "-b", "no-such-host.invalid:9092").err
    outcome = cli("topic", "list", "-b", "localhost:http")
    assert "invalid broker address 'localhost:http'" in outcome.err
    assert outcome.code == ExitCode.USAGE


def test_something_that_is_no_kafka_broker_is_said_to_be_so(cli):
    import socket
    import threading

    def hang_up(server):
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=hang_up, args=(server,), daemon=True)
        thread.start()
        outcome = cli("topic", "list", "-b", f"127.0.0.1:{server.getsockname()[1]}")
        server.shutdown(socket.SHUT_RDWR)
    assert outcome.code == ExitCode.UNREACHABLE
    assert len(outcome.err.splitlines()) == 2, "librdkafka's own log must not be seen"
    assert "is not a Kafka listener" in outcome.err


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        (("topic", "list", "-b"), "a Kafka listener"),
        (("queue", "list", "--grpc"), "a gRPC listener"),
        (("broker", "list", "--http"), "an HTTP listener"),
    ],
)
def test_a_wrong_port_is_named(cli, moldau_session_broker, command, wanted):
    broker = moldau_session_broker
    listeners = {
        "a Kafka listener": broker.bootstrap,
        "a gRPC listener": broker.grpc_address,
        "an HTTP listener": broker.http_address,
    }
    assert cli(*command, listeners.pop(wanted)).code == 0
    for name, address in listeners.items():
        outcome = cli(*command, address)
        assert outcome.code == ExitCode.UNREACHABLE
        assert outcome.err.startswith(f"error: {address} is {name}, not {wanted}\nhint:  use the ")


def test_output_is_coloured_on_a_terminal_only_and_not_with_no_color(spawn):
    def errors(**env):
        controller, terminal = pty.openpty()
        process = spawn("nonsense", stderr=terminal, env={"TERM": "xterm", **env})
        process.communicate(timeout=wait_seconds_max())
        import os

        os.close(terminal)
        text = os.read(controller, 4096).decode()
        os.close(controller)
        return text

    assert "\033[" in errors()
    assert "\033[" not in errors(NO_COLOR="1")
    plain = spawn("nonsense")
    assert "\033[" not in plain.communicate(timeout=wait_seconds_max())[1]


def test_exit_codes_are_those_of_the_reference():
    page = (Path(__file__).resolve().parents[2] / "docs/reference/cli.md").read_text()
    documented = dict(re.findall(r"^\| (\d+) \| `(\w+)`", page, re.MULTILINE))
    assert documented == {str(code.value): code.name for code in ExitCode}


def test_the_reference_names_every_command():
    page = (Path(__file__).resolve().parents[2] / "docs/reference/cli.md").read_text()
    for path, command in TREE[1:]:
        if not isinstance(command, click.Group) and not command.hidden:
            assert f"`{' '.join(path)}" in page, path
