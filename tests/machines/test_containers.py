"""docs/operate/containers.md, pasted into a real engine: the image, and the compose file.

The base images are stand-ins, made of Debian's packages, and Grafana is none at all: see
tests/helpers/docker_stand_ins.py.
"""

import json
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import pytest
from doc_pages import ROOT, all_blocks
from docker_engine import BUILD_SECONDS_MAX, DockerEngine, Foreground
from docker_stand_ins import make_stand_ins
from moldau_command import run_moldau
from pseudo_terminal import Terminal
from steady_load import SteadyLoad

from faults.checker import check
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.machine

PAGE: Final = ROOT / "docs/operate/containers.md"
UP, INSIDE, BUILD_AND_RUN = (
    block.text
    for block in all_blocks(PAGE)
    if block.mark == "run by tests/machines/test_containers.py"
)
BUILD, RUN = re.split(r"^(?=docker run)", BUILD_AND_RUN, flags=re.MULTILINE)
HEALTH: Final = re.findall(r"^moldau broker health[^#\n]*", PAGE.read_text(), re.MULTILINE)
COMPOSE, _, _ = UP.strip().rpartition(" up")
IMAGE: Final = "moldau:0.1.0"
BROKERS: Final = "localhost:9092,localhost:9093,localhost:9094"
SERVICES: Final = ("broker-1", "broker-2", "broker-3", "grafana", "prometheus", "proxy")
WITHOUT_HEALTH_CHECK: Final = ("grafana", "proxy")
INTERRUPTED: Final = 130


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerEngine]:
    with DockerEngine(tmp_path_factory.mktemp("engine")) as engine:
        make_stand_ins(engine)
        yield engine


class Stack:
    """What the compose file started."""

    def __init__(self, engine: DockerEngine, up: Foreground) -> None:
        self.engine, self.up = engine, up
        # The first one builds the image.
        began = time.monotonic()
        while not engine.run(f"docker images -q {IMAGE}"):
            assert time.monotonic() - began < BUILD_SECONDS_MAX, up.output
            with suppress(subprocess.TimeoutExpired):
                assert up.process.wait(1) is None, up.output
        self.wait_healthy()

    def containers(self) -> dict[str, str]:
        """What the engine says of the container of each service: `Up 3 seconds (healthy)`."""
        labels = '{{.Label "com.docker.compose.service"}}={{.Status}}'
        lines = self.engine.run(f"docker ps --all --format '{labels}'").splitlines()
        return dict(line.split("=", 1) for line in lines)

    def wait_healthy(self) -> None:
        def holds() -> bool:
            assert self.up.process.poll() is None, self.up.output
            found = self.containers()
            return set(found) == {*SERVICES, "secret"} and all(
                found[name].startswith("Up")
                and ("(healthy)" in found[name] or name in WITHOUT_HEALTH_CHECK)
                for name in SERVICES
            )

        wait_until(holds, "all services are healthy", describe=lambda: self.up.output)

    def wait_restarted(self, container: str) -> None:
        count = f"docker inspect -f '{{{{.RestartCount}}}}' {container}"
        wait_until(lambda: self.engine.run(count) == "1", "the engine has started it again")

    def topics(self) -> list[str]:
        return run_moldau("topic", "list", "-o", "name", "-b", BROKERS).split()


@contextmanager
def started(engine: DockerEngine, up: str = UP) -> Iterator[Stack]:
    with engine.foreground(up) as process:
        yield Stack(engine, process)


@pytest.fixture
def stack(engine: DockerEngine) -> Iterator[Stack]:
    try:
        with started(engine) as stack:
            yield stack
    finally:
        engine.run(f"{COMPOSE} down -v")


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def test_one_command_brings_up_all_that_the_page_says(stack: Stack) -> None:
    assert stack.containers()["secret"].startswith("Exited (0)")
    # An image of this name in a registry would be that of others.
    assert not re.search(r"(broker|proxy|secret)\S* Pull", stack.up.output)
    for port in (8080, 8081, 8082):
        assert json.loads(get(f"http://localhost:{port}/readyz"))["ready"]

    def targets() -> dict[str, str]:
        found = json.loads(get("http://localhost:9090/api/v1/targets"))["data"]["activeTargets"]
        return {each["labels"]["instance"]: each["health"] for each in found}

    up = {f"broker-{number}:8080": "up" for number in (1, 2, 3)}
    wait_until(lambda: targets() == up, "Prometheus reaches all brokers", describe=targets)
    assert "MoldauPartitionOffline" in get("http://localhost:9090/api/v1/rules")
    # In the place of Grafana its files are served.
    for folder in ("/etc/grafana/provisioning/", "/var/lib/grafana/dashboards/"):
        assert "href" in get(f"http://localhost:3000{folder}")

    run_moldau("topic", "create", "jobs", "-b", BROKERS)
    run_moldau("queue", "send", "jobs", "resize", "--grpc", "localhost:8000")
    worked = run_moldau("queue", "work", "jobs", "-g", "w", "-n", "1", "--grpc", "localhost:8000")
    assert worked.split() == ["resize"]
    assert "broker-3:8080" in run_moldau("broker", "list", "--http", "localhost:8082")
    inside = f"docker run --rm --network moldau_default {IMAGE}"
    kafka = "-b broker-1:29092,broker-2:29092,broker-3:29092"
    assert "jobs" in stack.engine.run(f"{inside} topic list -o name {kafka}").split()

    ids = stack.engine.run(f"{COMPOSE} ps --all --quiet").split()
    restarts = stack.engine.run(f"docker inspect -f '{{{{.RestartCount}}}}' {' '.join(ids)}")
    assert set(restarts.split()) == {"0"}, stack.up.output

    assert stack.up.interrupt() == INTERRUPTED
    ended = stack.containers()
    ended.pop("grafana")
    assert all(status.startswith("Exited (0)") for status in ended.values()), ended


def test_doctor_and_top_work_in_a_container(stack: Stack) -> None:
    def spawn(*words: str, env: dict[str, str], **streams: Any) -> "subprocess.Popen[str]":
        environment = {**stack.engine.environment, **env}
        return subprocess.Popen(
            words, cwd=stack.engine.clone, env=environment, text=True, **streams
        )

    terminal = Terminal(spawn, "bash", "-ec", INSIDE, whole=True, size=(140, 50))
    try:
        terminal.read_until("checks are ok")
        terminal.read_until(": all 3 brokers respond")
        terminal.type("q")
        code, _ = terminal.end()
        assert code == 0, terminal.seen
    finally:
        terminal.process.kill()
        terminal.close()


@pytest.mark.safety
def test_a_killed_broker_comes_back_and_nothing_acknowledged_is_lost(stack: Stack) -> None:
    run_moldau("topic", "create", "orders", "-p", "3", "-b", BROKERS)
    with SteadyLoad(BROKERS, "orders", 3) as load:
        load.wait_for_more()
        for number in (1, 2, 3):
            container = f"moldau-broker-{number}-1"
            stack.engine.kill(container)
            load.wait_for_more()
            stack.wait_restarted(container)
            stack.wait_healthy()
            load.wait_for_more()
    load.read_all()
    assert load.failures == []
    verdict = check(load.events)
    assert verdict.clean, verdict
    assert verdict.acked == load.acked > 0


def test_down_keeps_the_data_and_down_v_deletes_it(stack: Stack) -> None:
    def volumes() -> set[str]:
        return set(stack.engine.run("docker volume ls -q").split())

    named = {f"moldau_{name}" for name in ("secret", *SERVICES) if name != "proxy"}
    run_moldau("topic", "create", "kept", "-b", BROKERS)
    stack.engine.run(f"{COMPOSE} down")
    assert stack.containers() == {}
    # And none without a name, which nobody would find again.
    assert volumes() == named
    with started(stack.engine, f"{UP.strip()} --build") as again:
        assert "kept" in again.topics()
        stack.engine.run(f"{COMPOSE} down -v")
    assert volumes() == set()
    with started(stack.engine) as new:
        assert new.topics() == []


@pytest.fixture
def image(engine: DockerEngine) -> str:
    # As where somebody develops: it is of another Python, and not for the image.
    (engine.clone / "src/moldau/compiled_here.so").touch()
    engine.run(BUILD)
    return IMAGE


@pytest.mark.usefixtures("image")
def test_one_broker_runs_as_the_page_says_and_its_data_outlives_the_container(
    engine: DockerEngine,
) -> None:
    assert engine.run(f"docker image inspect -f '{{{{.Config.User}}}}' {IMAGE}") == "10001:10001"
    with running(engine, RUN) as (first, container):
        assert engine.run(f"docker exec {container} id -u") == "10001"
        assert engine.run(f"docker exec {container} find /opt/moldau -name compiled_here.so") == ""
        assert len(HEALTH) == 2
        for line in HEALTH:
            engine.run(f"docker exec {container} {line}")
        run_moldau("topic", "create", "kept", "-b", "localhost:9092")
        engine.run(f"docker stop {container}")
        assert first.process.wait(30) == 0, first.output
        assert first.output.splitlines()[-1].endswith("stopped")
        engine.run(f"docker rm {container}")
    # Without --init, the command itself is the first process.
    with running(engine, RUN.replace("--init", "--stop-timeout 60")) as (second, container):
        assert "kept" in run_moldau("topic", "list", "-o", "name", "-b", "localhost:9092")
        assert second.interrupt() == 0, second.output
        engine.run(f"docker rm {container}")
    engine.run("docker volume rm moldau")


@contextmanager
def running(engine: DockerEngine, text: str) -> Iterator[tuple[Foreground, str]]:
    with engine.foreground(text) as process:
        healthy = f"docker ps -q --filter ancestor={IMAGE} --filter health=healthy"
        found = wait_until(
            lambda: engine.run(healthy), "it is healthy", describe=lambda: process.output
        )
        yield process, found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("-v $PWD:/var/lib/moldau", "Permission denied"),
        ("-v refused:/var/lib/moldau:ro", "Read-only file system"),
        ("-e MOLDAU_SECURITY__INSECURE=false", "serves everyone: refused"),
        ("-e MOLDAU_SECURITY__INSECUR=true", "unknown variable MOLDAU_"),
    ],
)
def test_a_container_that_cannot_start_says_why_as_on_the_page(
    engine: DockerEngine, image: str, options: str, message: str
) -> None:
    assert message in PAGE.read_text()
    everyone = "-e MOLDAU_SECURITY__INSECURE=true -e MOLDAU_KAFKA__ADVERTISED=localhost:9092"
    output = engine.run(f"! docker run --rm {everyone} {options} {image}")
    assert message in output
    assert "hint:" in output
