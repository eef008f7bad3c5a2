"""Running commands in this process and in one of their own, and librdkafka's mock cluster."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from moldau.cli.main import run
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith("MOLDAU_"):
            monkeypatch.delenv(name)
    # No profile of the user who runs the tests.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def cli(capfd):
    """Run a command in this process."""

    def call(*arguments: object) -> Outcome:
        capfd.readouterr()
        code = run([str(argument) for argument in arguments])
        sys.stdout.flush()
        out, err = capfd.readouterr()
        return Outcome(int(code), out, err)

    return call


@pytest.fixture
def spawn():
    """Run a command in a process of its own; whatever still runs at the end is ended by pid."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object, env=None, module="moldau", **options):
        clean = {key: value for key, value in os.environ.items() if not key.startswith("MOLDAU_")}
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            env={**clean, **(env or {})},
            **options,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def mock_brokers():
    """librdkafka's own mock cluster: data and groups, but no topic administration."""
    from confluent_kafka.admin import AdminClient

    holder = AdminClient({"test.mock.num.brokers": 1, "log_level": 0})
    node = next(iter(holder.list_topics(timeout=wait_seconds_max()).brokers.values()))
    yield f"{node.host}:{node.port}"
    del holder


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nobody listens: bound, so that nobody else takes it, but not listening."""
    import socket

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture(scope="session")
def secured() -> Iterator[Broker]:
    """A broker whose Kafka listener requires a login."""
    mechanisms = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
    with Broker(settings={"KAFKA__SASL_MECHANISMS": mechanisms}) as broker:
        yield broker


@pytest.fixture
def admin(cli, secured):
    """Run a command as the local administrator of that broker."""

    def call(*arguments):
        return cli(*arguments, "-b", secured.bootstrap, "--data-dir", secured.data_dir)

    return call


@pytest.fixture
def new_user(admin, cli, secured, tmp_path):
    """Add a user; returns a function that runs a command as this user."""

    def make(name):
        password_file = tmp_path / f"{name}.password"
        made = admin("user", "add", name, "--generate")
        assert made.code == 0, made.err
        password_file.write_text(made.out)
        login = ("--user", name, "--password-file", password_file)

        def call(*arguments):
            return cli(*arguments, "-b", secured.bootstrap, *login)

        return call

    return make
