"""The wheel works where there is nothing but Python: no checkout, no compiler, no test tools."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from doc_pages import ROOT, all_blocks, blocks

from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max, wait_until
from release.dist import build, wheel_problems

pytestmark = pytest.mark.system

UV = shutil.which("uv") or shutil.which("uv", path=Path(sys.executable).parent)
EPOCH = 1_700_000_000
NO_NETWORK = (
    "Temporary failure in name resolution",
    "dns error",
    "ConnectionError",
    "Connection refused",
)
OF_A_USER = """
def test_a_record_comes_back(moldau_broker, moldau_topic):
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": moldau_broker.bootstrap})
    producer.produce("rivers", value="Vltava")
    assert producer.flush(30) == 0
    assert moldau_topic.startswith("test-")
"""


@dataclass(frozen=True)
class Bare:
    """An environment of its own, and an empty folder to work in."""

    bin: Path
    work: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(self.work)}

    @contextmanager
    def started(self, *command: str) -> Iterator[Path]:
        """A command that goes on, and the file with what it prints; it ends by Ctrl-C, with 0."""
        output = self.work / "output"
        with output.open("w") as sink:
            process = subprocess.Popen(
                command,
                cwd=self.work,
                env=self.environment,
                stdout=sink,
                stderr=subprocess.STDOUT,
            )
        try:
            yield output
            process.send_signal(signal.SIGINT)
            assert process.wait(wait_seconds_max()) == 0, output.read_text()
        finally:
            process.kill()
            process.wait()

    def run(self, *command: str, **settings: str) -> str:
        done = subprocess.run(
            command,
            cwd=self.work,
            env=self.environment | settings,
            capture_output=True,
            text=True,
            timeout=2 * wait_seconds_max(),
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the work tree, by way of the source distribution."""
    return build(ROOT, tmp_path_factory.mktemp("dist"), EPOCH)[1]


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bare]:
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run(
        [sys.executable, "-m", "venv", *(["--without-pip"] if UV else []), folder / "env"],
        check=True,
        timeout=wait_seconds_max(),
    )
    python = folder / "env" / "bin" / "python"
    pip: list[str | Path] = [python, "-m", "pip", "install", "--no-compile"]
    if UV:
        pip = [UV, "pip", "install", "--python", python]
    lock = ("-c", ROOT / "constraints.txt")
    done = subprocess.run(
        [*pip, "--quiet", *lock, wheel, "pytest"],
        capture_output=True,
        text=True,
        timeout=4 * wait_seconds_max(),
        check=False,
    )
    if done.returncode and any(sign in done.stderr for sign in NO_NETWORK):
        pytest.skip(
            "the packages that the wheel needs cannot be fetched: no package index is reachable"
        )
    assert done.returncode == 0, done.stderr
    (folder / "work").mkdir()
    yield Bare(python.parent, folder / "work")
    shutil.rmtree(folder)


def test_the_wheel_is_for_every_machine(wheel: Path) -> None:
    assert wheel_problems(wheel) == []


def test_the_quick_start_works_with_the_wheel_alone(bare: Bare) -> None:
    place = bare.run("python", "-c", "import moldau; print(moldau.__file__)")
    assert Path(place).is_relative_to(bare.bin.parent)
    (shell,) = blocks("README.md", "bash", "Quick start")
    (code,) = blocks("README.md", "python", "Quick start")
    ports = dict(zip(("kafka", "raft", "http", "grpc"), free_ports(4), strict=True))
    settings = [f"--set={name}.addr=127.0.0.1:{port}" for name, port in ports.items()]
    kafka = f"127.0.0.1:{ports['kafka']}"
    with bare.started("moldau", "dev", *settings) as output:
        wait_until(lambda: "ready on" in output.read_text(), "ready", describe=output.read_text)
        shell = shell.replace(". .venv/bin/activate\n", "")
        said = bare.run("bash", "-ec", shell, MOLDAU_BROKERS=kafka)
        assert "hello from the Moldau" in said
        assert "Vltava" in bare.run("python", "-c", code.replace("localhost:9092", kafka))
        report = bare.run("moldau", "doctor", *settings, MOLDAU_BROKERS=kafka)
        assert "cluster" in report
        assert "trouble" not in report


def test_the_extra_for_traces_is_installed_as_its_page_says(bare: Bare, wheel: Path) -> None:
    (block,) = [
        block for block in all_blocks(ROOT / "docs/operate/tracing.md") if "pip" in block.text
    ]
    pip = f'{UV} pip "$@" --python {bare.bin}/python --quiet' if UV else 'python -m pip "$@" -q'
    # Instead of a released version.
    this = bare.work / "this.txt"
    this.write_text(f"moldau @ {wheel.as_uri()}\n")
    settings = {**os.environ, "UV_CONSTRAINT": str(this), "PIP_CONSTRAINT": str(this)}
    settings |= bare.environment
    bare.run("bash", "-ec", f"pip() {{ {pip}; }}\n{block.text}", **settings)
    bare.run("python", "-c", "from moldau import tracing; tracing.instrument()")


def test_the_pytest_plugin_works_with_the_wheel_alone(bare: Bare) -> None:
    (bare.work / "test_of_a_user.py").write_text(OF_A_USER)
    assert "1 passed" in bare.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider")
