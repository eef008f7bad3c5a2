"""Images that stand for those of registries, which a machine for tests may not reach.

Python and Prometheus are those of Debian, in images that have the entry point, user and volume of
the real ones. Grafana is not in Debian: in its place the mounted files are served as they are.
"""

import os
import re
from pathlib import Path
from typing import Final

from docker_engine import DockerEngine
from machine_rootfs import debian

SUITE: Final = "trixie"
PYTHON: Final = (
    "ca-certificates",
    "python-is-python3",
    "python3",
    "python3-pip",
    "python3-venv",
    "tzdata",
)
PROMETHEUS: Final = ("ca-certificates", "prometheus", "wget")
NOBODY: Final = 65534


def make_stand_ins(engine: DockerEngine) -> None:
    """All images that the Dockerfile and the compose file name, but Moldau's."""
    dockerfile = (engine.clone / "deploy/docker/Dockerfile").read_text()
    compose = (engine.clone / "deploy/docker/compose.yaml").read_text()
    (version,) = re.findall(r"^ARG PYTHON_VERSION=(.*)$", dockerfile, re.MULTILINE)
    prometheus, grafana = re.findall(r"image: ((?:prom|grafana)/\S+)", compose)
    python = debian(SUITE, PYTHON)
    _add(engine, f"python:{version}-slim", python, 'CMD ["python3"]')
    _add(
        engine,
        grafana,
        python,
        # `timeout` passes on SIGTERM, which Python as a first process would ignore.
        'CMD ["timeout", "1d", "python3", "-m", "http.server", "3000", "--directory", "/"]',
        f"USER {NOBODY}",
    )
    _add(
        engine,
        prometheus,
        debian(SUITE, PROMETHEUS),
        'ENTRYPOINT ["/bin/prometheus"]',
        'CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]',
        "WORKDIR /prometheus",
        "VOLUME /prometheus",
        f"USER {NOBODY}",
    )


def _add(engine: DockerEngine, image: str, root: Path, *changes: str) -> None:
    own = engine.home / "own" / "prometheus"
    own.mkdir(parents=True, exist_ok=True)
    os.chown(own, NOBODY, NOBODY)
    changed = " ".join(f"--change '{change}'" for change in changes)
    engine.run(
        "set -o pipefail; tar --create --exclude=./var/lib/apt/lists/*"
        f" --directory={root} . --directory={own.parent} ./prometheus"
        f" | docker import {changed} - {image}"
    )
