"""The harness of the tests itself: it catches what it must, and repeats only what it may."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
HEADS = {
    "pure": "",
    "inprocess": "pytestmark = pytest.mark.inprocess",
    "system": "pytestmark = pytest.mark.system",
}


class Project:
    """A project of its own with the tests that are given, and the harness that ours has."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "tests").mkdir()
        (path / "tests/run.py").write_text((ROOT / "tests/run.py").read_text())
        (path / "tests/conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
        settings = (ROOT / "pyproject.toml").read_text().partition("[tool.pytest.ini_options]")[2]
        settings = settings.partition("\n[tool.")[0]
        settings = settings.replace("tests/helpers", str(ROOT / "tests/helpers"))
        (path / "pyproject.toml").write_text(f"[tool.pytest.ini_options]{settings}")

    def write(self, name: str, kind: str, body: str) -> None:
        head = f"import os, signal, socket, subprocess, sys, time\nimport pytest\n{HEADS[kind]}\n"
        (self.path / "tests" / f"test_{name}.py").write_text(head + textwrap.dedent(body))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
        }
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=self.path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=wait_seconds_max(),
        )

    def pytest(self, *arguments: str) -> str:
        return self.run("pytest", "-p", "no:cacheprovider", *arguments).stdout


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.mark.parametrize(
    ("kind", "body", "complaint"),
    [
        ("pure", "time.sleep(0)", "sleeps"),
        ("pure", "time.monotonic()", "reads the real clock"),
        ("pure", "socket.socket().close()", "opens a socket"),
        ("pure", "__import__('threading').Thread(target=print).start()", "starts a thread"),
        ("pure", "subprocess.run(['true'])", "starts a process"),
        ("inprocess", "subprocess.run(['true'])", "starts a process"),
    ],
)
def test_a_test_that_needs_more_than_its_kind_says_fails(
    kind: str, body: str, complaint: str, project: Project
) -> None:
    # Caught by the test, it is told all the same.
    project.write(
        "caught", kind, f"def test():\n    try:\n        {body}\n    except AssertionError: pass"
    )
    project.write("plain", kind, f"def test():\n    {body}")
    said = project.pytest()
    assert f"the test {complaint}" in said
    assert "2 failed" in said


def test_the_same_is_fine_where_the_kind_allows_it(project: Project) -> None:
    project.write("inprocess", "inprocess", "def test():\n    socket.socket().close()")
    project.write("system", "system", "def test():\n    subprocess.run(['true'])")
    project.write("pure", "pure", "async def test():\n    import asyncio; await asyncio.sleep(600)")
    assert "3 passed" in project.pytest()


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("signal.signal(signal.SIGUSR1, lambda *_: None)", "signal handlers: "),
        ("os.environ['LEFT'] = 'behind'", "environment: b'LEFT'"),
        ("os.chdir('/')", "working directory: "),
        ("__import__('logging').getLogger('x').addHandler(H)", "logging handlers: x"),
        ("KEPT.append(open(__file__))", "open files: "),
        ("KEPT.append(subprocess.Popen(['sleep', '60']))", "child processes: "),
        ("asyncio.set_event_loop_policy(Policy())", "event loop policy: "),
    ],
)
def test_a_test_that_leaves_something_behind_fails(
    body: str, complaint: str, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = "system" if "Popen" in body else "pure"
    project.write(
        "leak",
        kind,
        f"""
        import asyncio, logging
        KEPT = []
        H = logging.StreamHandler()
        class Policy(asyncio.DefaultEventLoopPolicy): pass
        @pytest.fixture(scope="module", autouse=True)
        def end():
            yield
            for kept in KEPT:
                if hasattr(kept, "kill"): kept.kill()
        def test():
            {body}
        """,
    )
    said = project.pytest()
    assert complaint in said
    assert "1 passed, 1 error" in said


def test_files_of_spark_never_run_beside_others(project: Project) -> None:
    project.write("spark", "pure", "pytestmark = pytest.mark.spark\ndef test(): pass")
    project.write("other", "pure", "def test(): pass")
    done = project.run("pytest")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "Choose a kind with --kind" in done.stderr + done.stdout
    assert "1 passed" in project.pytest("--kind", "spark")


FAILS_ONCE = """
from pathlib import Path
def test_flaky():
    ran = Path(__file__).with_suffix(".ran")
    if not ran.exists():
        ran.touch()
        pytest.fail("once")
"""
GIVEN = """
from hypothesis import given, strategies
@given(strategies.just(1))
def test_flaky(_)"""


def test_a_system_test_that_fails_once_is_repeated_and_told(project: Project) -> None:
    project.write("slow", "system", FAILS_ONCE)
    done = subprocess.run(
        [sys.executable, "tests/run.py", "--kind", "system"],
        cwd=project.path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "flaky: tests/test_slow.py::test_flaky" in done.stdout
    assert done.stdout.endswith("1 passed, 0 failed, 0 skipped\n")
    flaky = (project.path / ".test-results/flaky.txt").read_text()
    assert flaky == "tests/test_slow.py::test_flaky\n"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("pure", FAILS_ONCE),
        ("inprocess", FAILS_ONCE),
        ("system", FAILS_ONCE.replace("def test", "@pytest.mark.safety\ndef test")),
        (
            "system",
            "from hypothesis import given, strategies\n"
            + FAILS_ONCE.replace(
                "def test_flaky()", "@given(strategies.just(1))\ndef test_flaky(_)"
            ),
        ),
    ],
)
def test_what_is_a_defect_when_it_fails_once_is_never_repeated(
    kind: str, body: str, project: Project
) -> None:
    project.write("once", kind, body)
    done = subprocess.run(
        [sys.executable, "tests/run.py", "--kind", kind],
        cwd=project.path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout
    assert "failed: tests/test_once.py::test_flaky (never repeated)" in done.stdout
    assert "repeating" not in done.stdout
    assert done.stdout.endswith("0 passed, 1 failed, 0 skipped\n")


def test_a_seed_gives_an_order_of_its_own_and_the_same_each_time(project: Project) -> None:
    for name in "abcdef":
        project.write(name, "pure", "def test_1(): pass\ndef test_2(): pass")

    def order(seed: int) -> list[str]:
        said = project.pytest("-v", f"--order-seed={seed}")
        return [line.split()[0] for line in said.splitlines() if "PASSED" in line]

    assert order(1) == order(1)
    assert sorted(order(1)) == sorted(order(2))
    assert order(1) != order(2)


def test_results_say_what_failed_and_whether_it_may_be_repeated(project: Project) -> None:
    project.write("system", "system", "def test(): assert False\ndef test_fine(): pass")
    project.pytest("--results", "results.json")
    results = json.loads((project.path / "results.json").read_text())
    assert (results["passed"], results["skipped"]) == (1, 0)
    assert results["failed"] == {"tests/test_system.py::test": True}
