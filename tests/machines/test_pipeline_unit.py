"""deploy/pipelines/moldau-archive.service on a machine on which systemd is the first process.

Spark itself is that of the tests, which the machine can read: it has no wheel, and is large. Java
is Debian's.
"""

import importlib.util
import re
import shlex
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_pages import ROOT, all_blocks
from systemd_machines import LENT, Remote, systemd_machines

from moldau.testing.waiting import wait_until
from release.dist import build

pytestmark = pytest.mark.machine

PAGE = ROOT / "docs/operate/systemd.md"
UNIT = "moldau-archive"
HOME = f"/var/lib/{UNIT}"
CHANGES = {
    "s3://lake/clicks": f"{HOME}/lake",
    "broker-1.example:9092,broker-2.example:9092": "127.0.0.1:9092",
}
"""As a user makes them: where it writes to, and the brokers."""
EPOCH = 1_700_000_000
COUNT = """
import os
from deltalake import DeltaTable
rows = DeltaTable("{}").to_pyarrow_table().column("value").to_pylist()
print(len(rows), len(set(rows)), flush=True)
# Threads of pyarrow may abort a process that ends as usual.
os._exit(0)
"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Remote]:
    """A machine with the program, its user, and a broker."""
    if importlib.util.find_spec("pyspark") is None:
        pytest.skip("the extra `spark` is not installed")
    if sysconfig.get_python_version() != "3.11":
        pytest.skip("Spark is that of the tests, and Debian has Python 3.11")
    _, wheel = build(ROOT, tmp_path, EPOCH)
    lent = Path(sysconfig.get_path("purelib"))
    java = ["openjdk-17-jre-headless", "procps"]
    with systemd_machines(tmp_path, ["host1"], wheel, packages=java, lent=lent) as made:
        host = made.hosts["host1"]
        install = next(block.text for block in all_blocks(PAGE) if "pip install" in block.text)
        host.run(install)
        host.run(f"echo {LENT} | sudo tee /opt/moldau/lib/python3.11/site-packages/lent.pth")
        host.settle("export PATH=/opt/moldau/bin:$PATH")
        host.start("moldau dev --data-dir data").wait_for("127.0.0.1:9092")
        host.run("moldau topic create clicks --partitions 1")
        yield host


def journal(host: Remote) -> str:
    return host.run(f"sudo journalctl -u {UNIT} --no-pager")


def wait_for(host: Remote, text: str, times: int) -> None:
    """Until the unit has said it so often."""
    wait_until(
        lambda: len(re.findall(text, journal(host))) >= times,
        f"{text!r} is in the journal",
        describe=lambda: journal(host),
    )


@pytest.mark.safety
def test_systemd_runs_an_archive_and_starts_it_again(host: Remote) -> None:
    edit = " ".join(f"-e {shlex.quote(f's#{old}#{new}#')}" for old, new in CHANGES.items())
    host.run(f"sed -i {edit} deploy/pipelines/{UNIT}.service")
    host.run(f"sudo install -m 0644 deploy/pipelines/{UNIT}.service /etc/systemd/system/")
    host.run("seq 1 100 | moldau produce clicks")
    host.run(f"sudo systemctl daemon-reload && sudo systemctl enable --now {UNIT}")
    wait_for(host, "archive-clicks running", 1)
    wait_for(host, "running: 100 rows", 1)

    # Java ends with it, and what comes after continues from the checkpoint.
    host.run(f"sudo kill -9 $(systemctl show {UNIT} -p MainPID --value)")
    host.run("seq 101 200 | moldau produce clicks")
    wait_for(host, "Scheduled restart job", 1)
    wait_for(host, "archive-clicks starting", 2)
    wait_for(host, "Setting default log level", 2)
    wait_for(host, "running: 100 rows", 2)

    host.run(f"sudo systemctl stop {UNIT}")
    ended = host.run(f"systemctl show {UNIT} -p Result -p NRestarts")
    assert set(ended.split()) == {"Result=success", "NRestarts=1"}
    assert host.attempt("pgrep -u moldau")[1] == ""
    count = shlex.quote(COUNT.format(f"{HOME}/lake"))
    assert host.run(f"sudo -u moldau /opt/moldau/bin/python -c {count}") == "200 200\n"
