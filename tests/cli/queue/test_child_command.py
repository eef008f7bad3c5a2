"""Commands that `moldau queue work` runs: what they are given, and what their end means."""

import asyncio
import json
import os
import signal
import sys
from dataclasses import dataclass, field

import pytest
from fakes import Fake
from hypothesis import given
from hypothesis import strategies as st

from moldau.cli.queue.child_command import (
    REASON_CHARACTERS_MAX,
    VARIABLE_BYTES_MAX,
    LastLine,
    describe,
    run_command,
    variables,
)
from moldau.testing.waiting import until

pytestmark = pytest.mark.system


@dataclass
class Message(Fake):
    value: bytes | None = b"the value"
    key: bytes | None = b"the key"
    headers: list[tuple[str, bytes | None]] = field(
        default_factory=lambda: [("a", b"1"), ("b", None), ("c", b"\xff")]
    )
    topic: str = "jobs"
    partition: int = 3
    offset: int = 42
    timestamp: int = 1_700_000_000_000
    attempt: int = 2


def shell(script: str, message: Message | None = None, **options):
    return run_command(
        ["/bin/sh", "-c", script],
        message or Message(),
        "workers",
        environment=dict(os.environ),
        **options,
    )


async def test_the_value_is_on_stdin_and_the_rest_in_the_environment(tmp_path):
    script = f"""
        cat > {tmp_path}/value
        env | grep ^MOLDAU_ > {tmp_path}/environment
    """
    assert await shell(script) == ""
    assert (tmp_path / "value").read_bytes() == b"the value"
    found = dict(line.split("=", 1) for line in (tmp_path / "environment").read_text().splitlines())
    assert json.loads(found.pop("MOLDAU_HEADERS")) == [
        ["a", "1"],
        ["b", None],
        ["c", {"base64": "/w=="}],
    ]
    assert found == {
        "MOLDAU_TOPIC": "jobs",
        "MOLDAU_PARTITION": "3",
        "MOLDAU_OFFSET": "42",
        "MOLDAU_TIMESTAMP": "1700000000000",
        "MOLDAU_ATTEMPT": "2",
        "MOLDAU_GROUP": "workers",
        "MOLDAU_KEY": "the key",
    }


@pytest.mark.parametrize("value", [None, b""])
async def test_a_message_without_a_value_is_an_empty_input(value, tmp_path):
    assert await shell(f"wc -c > {tmp_path}/count", Message(value=value)) == ""
    assert int((tmp_path / "count").read_text()) == 0


async def test_a_large_value_that_is_not_read_blocks_nothing():
    assert await shell("exit 0", Message(value=b"x" * 3_000_000)) == ""


async def test_a_failure_has_the_last_line_of_stderr_as_its_reason(capfd):
    ended = await shell("echo one >&2; echo 'no such user' >&2; echo >&2; echo out; exit 3")
    assert ended == "no such user"
    out, err = capfd.readouterr()
    assert (out, err) == ("out\n", "one\nno such user\n\n"), "and both are passed on"


@pytest.mark.parametrize(
    ("script", "reason"), [("exit 7", "exit status 7"), ("kill -9 $$", "killed by SIGKILL")]
)
async def test_a_failure_without_words_is_described_by_its_exit_code(script, reason):
    assert await shell(script) == reason


async def test_words_of_a_command_that_succeeds_are_no_reason():
    assert await shell("echo a warning >&2") == ""


async def test_a_command_that_takes_too_long_is_ended_with_what_it_started(tmp_path):
    pid = tmp_path / "pid"
    script = f"sleep 600 & echo $! > {pid}.new; mv {pid}.new {pid}; wait"
    # A busy machine may need more time for the first lines of it.
    for seconds in ("0.5", "5", "50"):
        ended = await shell(script, seconds_max=float(seconds))
        assert ended == f"timed out after {seconds} s"
        if pid.exists():
            break
    await until_gone(int(pid.read_text()))


@pytest.mark.safety
async def test_a_command_that_does_not_listen_is_killed(monkeypatch):
    monkeypatch.setattr("moldau.cli.queue.child_command.TERMINATE_SECONDS", 0.2)
    ended = await shell("trap '' TERM; while true; do sleep 0.1; done", seconds_max=0.2)
    assert ended == "timed out after 0.2 s"


async def test_a_cancelled_run_ends_its_command(tmp_path):
    running = asyncio.ensure_future(shell(f"echo $$ > {tmp_path}/pid; exec sleep 600"))
    pid = tmp_path / "pid"
    await until(lambda: pid.exists() and pid.read_text().strip(), "the command runs")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until_gone(int(pid.read_text()))


async def until_gone(pid: int) -> None:
    def is_gone() -> bool:
        try:
            with open(f"/proc/{pid}/stat") as stat:
                return stat.read().rpartition(")")[2].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    await until(is_gone, f"process {pid} is gone")


async def test_what_a_command_leaves_running_in_the_background_is_not_waited_for(tmp_path):
    ended = await shell(f"sleep 600 & echo $! > {tmp_path}/pid; echo late >&2; exit 1")
    assert ended == "late"
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


async def test_a_command_that_cannot_be_started_is_an_error_of_its_own():
    open_before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            await run_command(["/no/such/command"], Message(), "g", environment={})
    assert len(os.listdir("/proc/self/fd")) <= open_before + 1, "no file stays open"


async def test_several_run_at_once():
    script = [sys.executable, "-S", "-c", "import sys; sys.exit(sys.stdin.read())"]
    ends = await asyncio.gather(
        *(
            run_command(script, Message(value=f"m{number}".encode()), "g", environment={})
            for number in range(5)
        )
    )
    assert ends == [f"m{number}" for number in range(5)]


async def test_one_that_writes_without_end_stops_at_its_time():
    ended = await shell("while true; do echo no >&2; done", seconds_max=0.3)
    assert ended == "timed out after 0.3 s"


def test_a_key_that_no_variable_can_hold_is_written_otherwise_or_left_out():
    found = variables(Message(key=b"a\0b"), "g")
    assert "MOLDAU_KEY" not in found
    assert found["MOLDAU_KEY_BASE64"] == "YQBi"
    assert variables(Message(key=b"\xff"), "g")["MOLDAU_KEY"] == b"\xff"
    assert not {"MOLDAU_KEY", "MOLDAU_KEY_BASE64"} & variables(Message(key=None), "g").keys()
    huge = variables(
        Message(key=b"k" * (VARIABLE_BYTES_MAX + 1), headers=[("h", b"x" * VARIABLE_BYTES_MAX)]),
        "g",
    )
    assert not {"MOLDAU_KEY", "MOLDAU_KEY_BASE64", "MOLDAU_HEADERS"} & huge.keys()


@given(st.lists(st.binary(max_size=20)))
def test_the_last_line_is_found_however_it_comes(parts):
    last = LastLine()
    for part in parts:
        last.feed(part)
    lines = [line for line in b"".join(parts).split(b"\n") if line.strip()]
    expected = lines[-1].decode(errors="replace") if lines else ""
    shown = "".join(c if c.isprintable() else " " for c in expected)
    assert last.text == shown.strip()[:REASON_CHARACTERS_MAX]


def test_a_line_without_end_is_cut():
    last = LastLine()
    for _ in range(1000):
        last.feed(b"x" * 1000)
    assert last.text == "x" * REASON_CHARACTERS_MAX


def test_exit_codes_are_described():
    assert describe(2) == "exit status 2"
    assert describe(-15) == "killed by SIGTERM"
    assert describe(-200) == "killed by signal 200"
