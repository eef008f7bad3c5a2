"""The page about pipelines: its commands exist, and its walk from start to end works on Spark."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from moldau.cli.main import cli
from moldau.spark.pipelines.home import Home
from moldau.testing.broker import Broker

pytestmark = pytest.mark.system

ROOT = Path(__file__).parent.parent.parent.parent
PAGE = (ROOT / "docs/spark/pipelines.md").read_text()


def test_every_command_is_on_the_page() -> None:
    group = cli.get_command(click.Context(cli), "pipeline")
    assert isinstance(group, click.Group)
    told = re.findall(r"^\| `(\w+)[ `]", PAGE, flags=re.M)
    assert sorted(told) == sorted(group.list_commands(click.Context(group)))


def test_the_declared_example_is_understood(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
    from moldau.spark.pipelines.declared import from_plain, read_file

    (text,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, flags=re.M | re.S)
    file = tmp_path / "lake.yml"
    file.write_text(text.replace("${LAKE_SECRET}", "x"))
    settings = from_plain(read_file(file, {"bootstrap": "b:1", "home": "h"}), lax=True)
    assert settings.options == {"maxOffsetsPerTrigger": "100000"}


@pytest.fixture
def shell(broker: Broker, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of somebody who installed Moldau; what was started is ended by pid."""
    homes = tmp_path / "homes"
    yield {
        **{key: value for key, value in os.environ.items() if not key.startswith("MOLDAU_")},
        "MOLDAU_BROKERS": broker.bootstrap,
        "MOLDAU_PIPELINES_HOME": str(homes),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    for path in homes.iterdir() if homes.is_dir() else ():
        if key := Home(path).process():
            os.killpg(key.pid, 9)


def test_the_walk_from_start_to_end_works_as_pasted(
    spark: object, topic: str, shell: dict[str, str], tmp_path: Path
) -> None:
    """Takes two sessions of its own, for `run` and for `start`."""
    (text,) = re.findall(r"^```bash\n(.*?)^```$", PAGE, flags=re.M | re.S)
    said: dict[str, subprocess.CompletedProcess[str]] = {}
    for line in text.replace("clicks", f"{topic}-walk").splitlines():
        if not line:
            continue
        if " archive --topic" in line and " plan " not in line:
            line += " --master 'local[2]'"
        done = subprocess.run(
            ["bash", "-c", line],
            env=shell,
            cwd=tmp_path,
            timeout=280,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        words = shlex.split(line)
        said[words[2] if words[1] == "pipeline" else words[0]] = done
    assert "1000" in said["plan"].stdout
    assert "1000 rows" in said["run"].stdout
    assert "is running, as process" in said["start"].stdout
    assert ": running for" in said["status"].stdout
    assert said["stop"].stdout == f"stopped archive-{topic}-walk\n"
    assert "1000 records will be read again" in said["reset"].stderr
    assert re.search(rf"archive-{topic}-walk +archive +stopped", said["list"].stdout)
    told = json.loads((tmp_path / "homes" / f"archive-{topic}-walk" / "state.json").read_text())
    assert told["progress"]["dead_letters"] == 0
