"""A planted password appears nowhere: not in arguments of processes, output, errors or logs."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system

SECRET = "pl4nted-s3cret"


def family(pid: int) -> Iterator[int]:
    """The process and all that it started."""
    yield pid
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in (thread / "children").read_text().split():
            yield from family(int(child))


def command_lines(pid: int) -> bytes:
    return b"\n".join(Path(f"/proc/{each}/cmdline").read_bytes() for each in family(pid))


@pytest.fixture
def password_file(admin, tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(SECRET + "\n")
    if "olga" not in admin("user", "list", "-o", "name").out.split():
        made = admin("user", "add", "olga", "--new-password-file", path)
        assert made.code == 0, made.err
        assert admin("topic", "create", "secrets").code == 0
        assert admin("acl", "add", "olga", "all", "--topic", "secrets").code == 0
    return path


@pytest.mark.parametrize("way", ["file", "environment", "stdin"])
@pytest.mark.parametrize("debug", [False, True])
def test_commands_that_run(spawn, secured, password_file, way, debug):
    given = {
        "file": ("--password-file", password_file),
        "environment": (),
        "stdin": ("--password-file", "-"),
    }[way]
    process = spawn(
        *("tail", "secrets", "-b", secured.bootstrap, "--user", "olga", *given),
        # librdkafka writes what it does to stderr.
        *(("-X", "debug=security,broker,conf", "-X", "log_level=7") if debug else ()),
        env={"MOLDAU_PASSWORD": SECRET} if way == "environment" else {},
        stdin=subprocess.PIPE,
    )
    if way == "stdin":
        process.stdin.write(SECRET + "\n")
        process.stdin.flush()
    wait_until(lambda: is_connected(process.pid, secured.port), "it logs in")
    shown = command_lines(process.pid)
    assert b"olga" in shown
    assert SECRET.encode() not in shown
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert SECRET not in out + err
    assert SECRET not in secured.output


def is_connected(pid: int, port: int) -> bool:
    """Whether a connection of the process to the port is established."""
    wanted = f"{port:04X}"
    inodes = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[2].endswith(f":{wanted}") and fields[3] == "01":
            inodes.add(f"socket:[{fields[9]}]")
    links = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            links.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        except FileNotFoundError:
            continue
    return bool(inodes & links)


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "create", "not-mine"),
        ("topic", "list", "--mechanism", "PLAIN"),
        ("topic", "list", "--tls"),
        ("topic", "list", "-X", "sasl.mechanism=GSSAPI"),
        ("user", "list"),
        ("partition", "list-moves"),
        ("transaction", "list"),
        ("doctor",),
    ],
)
def test_commands_that_fail(cli, secured, password_file, arguments):
    login = ("--user", "olga", "--password-file", password_file)
    outcome = cli(*arguments, "-b", secured.bootstrap, *login)
    assert SECRET not in outcome.out + outcome.err
    wrong = password_file.parent / "wrong"
    wrong.write_text(f"not-{SECRET}\n")
    outcome = cli(*arguments, "-b", secured.bootstrap, "--user", "olga", "--password-file", wrong)
    assert outcome.code != 0
    assert SECRET not in outcome.out + outcome.err
    assert "Traceback" not in outcome.err
    assert SECRET not in secured.output
