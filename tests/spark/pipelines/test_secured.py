"""A pipeline on a broker that requires a login: all clients log in, and no password shows up."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from moldau_command import run_moldau

from moldau.client.errors import ClientError
from moldau.client.kafka.admin import Admin
from moldau.client.kafka.producer import Producer
from moldau.client.librdkafka_security import librdkafka_names
from moldau.spark.pipelines.secrets import MASK
from moldau.spark.pipelines.settings.audit import AuditSettings
from moldau.spark.pipelines.status import StatusTopic
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.spark

PASSWORD = "never-shown-4711"
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "ann",
    "sasl.password": PASSWORD,
}
OPTIONS = {f"kafka.{name}": value for name, value in LOGIN.items()}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """Of ann, who may do everything."""
    (tmp_path / "password").write_text(PASSWORD + "\n")
    with Broker(settings={"KAFKA__SASL_MECHANISMS": "SCRAM-SHA-256,SCRAM-SHA-512"}) as broker:
        admin = ("-b", broker.bootstrap, "--data-dir", str(broker.data_dir))
        new = ("--new-password-file", str(tmp_path / "password"))
        for arguments in (
            ("user", "add", "ann", *new, *admin),
            ("role", "grant", "admin", "ann", *admin),
        ):
            run_moldau(*arguments)
        yield broker


def settings(broker: Broker) -> AuditSettings:
    return AuditSettings(
        name="n", bootstrap=broker.bootstrap, home="/h", topics=("in",), options=OPTIONS
    )


def family(pid: int) -> Iterator[int]:
    yield pid
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                yield from family(int(child))
    except OSError:
        return


def command_lines(pid: int) -> dict[str, str]:
    """Of the process and all that it started, by program."""
    found = {}
    for each in family(pid):
        try:
            line = Path(f"/proc/{each}/cmdline").read_text()
        except OSError:
            continue
        found[Path(line.partition("\0")[0]).name] = line
    return found


def test_an_archive_logs_in_and_shows_no_password(broker: Broker, tmp_path: Path) -> None:
    with Producer(broker.bootstrap, security=LOGIN) as producer:
        for number in range(10):
            producer.send("in", {"number": number})
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "moldau", "pipeline", "run", "archive", "--topic", "in"),
            *("--to", str(tmp_path / "table"), "--home", str(tmp_path / "home"), "-o", "json"),
            *("-b", broker.bootstrap, "--user", "ann", "--mechanism", "SCRAM-SHA-256"),
            *("--password-file", str(tmp_path / "password"), "--name", "secured"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)},
    )
    seen: dict[str, str] = {}
    deadline = time.monotonic() + wait_seconds_max()
    while process.poll() is None and time.monotonic() < deadline:
        seen |= command_lines(process.pid)
        time.sleep(0.2)
    out, err = process.communicate(timeout=wait_seconds_max())
    assert process.returncode == 0, err
    assert any("java" in program for program in seen), "Spark was started"
    everything = [out, err, broker.output, *seen.values()]
    assert not [each for each in everything if PASSWORD in each]
    with StatusTopic(broker.bootstrap, security=settings(broker).security) as board:
        status = board.read()["secured"]
    assert status.progress.rows == 10
    assert status.settings["options"]["kafka.sasl.password"] == MASK
    left = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert left
    assert not [path for path in left if PASSWORD.encode() in path.read_bytes()]


def test_clients_of_pipelines_use_the_options_of_the_source(broker: Broker) -> None:
    found = settings(broker)
    assert PASSWORD not in repr(found)
    assert Admin(broker.bootstrap, librdkafka_names(found.security)).nodes()
    with StatusTopic(broker.bootstrap, security=found.security) as board:
        assert board.read() == {}
    with StatusTopic(broker.bootstrap, seconds_max=1.0) as board, pytest.raises(ClientError):
        board.read()
