"""The page about pipelines: its commands exist, and its walk from start to end works on Spark."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from moldau.cli.main import cli, run
from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parent.parent.parent.parent
PAGE = (ROOT / "docs/spark/pipelines.md").read_text()


def test_every_command_is_on_the_page() -> None:
    group = cli.get_command(click.Context(cli), "pipeline")
    assert isinstance(group, click.Group)
    told = re.findall(r"^\| `(\w+)[ `]", PAGE, flags=re.M)
    assert sorted(told) == sorted(group.list_commands(click.Context(group)))


def test_the_declared_example_is_understood(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
    from moldau.spark.pipelines.settings_file import from_plain, read_file

    (text,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, flags=re.M | re.S)
    file = tmp_path / "lake.yml"
    file.write_text(text.replace("${LAKE_SECRET}", "x"))
    settings = from_plain({"bootstrap": "b:1", "home": "h", **read_file(file)})
    assert settings.options == {"maxOffsetsPerTrigger": "100000"}


@pytest.fixture
def _somebody(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has Moldau and a broker."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOLDAU_BROKERS", broker.bootstrap)
    monkeypatch.setenv("MOLDAU_PIPELINES_HOME", str(tmp_path / "homes"))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)


@pytest.mark.usefixtures("spark", "_somebody")
def test_the_walk_from_start_to_end_works_as_pasted(
    topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """`run` uses the session that is there."""
    (text,) = re.findall(r"^```bash\n(.*?)^```$", PAGE, flags=re.M | re.S)
    said: dict[str, tuple[str, str]] = {}
    for line in filter(None, text.replace("clicks", f"{topic}-walk").splitlines()):
        if "|" in line:
            subprocess.run(["bash", "-c", line], timeout=wait_seconds_max(), check=True)
            continue
        words = shlex.split(line)[1:]
        capfd.readouterr()
        code = run(words)
        said[words[1]] = capfd.readouterr()
        assert code == 0, said[words[1]]
    assert "1000" in said["plan"][0]
    assert "1000 rows" in said["run"][0]
    assert f"archive-{topic}-walk (archive): finished" in said["status"][0]
    assert "1000 records will be read and written again" in said["reset"][1]
    assert re.search(rf"archive-{topic}-walk +archive +finished", said["list"][0])
