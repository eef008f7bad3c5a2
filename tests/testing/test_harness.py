"""The harness of the tests itself: it catches what it must, and repeats only what it may."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from xml.etree import ElementTree

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

    def complaints(self) -> dict[str, str]:
        """What was said of each test, by the name of its file; "" where nothing was."""
        self.pytest("--junit-xml=report.xml")
        found: dict[str, str] = {}
        for case in ElementTree.parse(self.path / "report.xml").iter("testcase"):
            told = [part.get("message", "") for part in case if part.tag in ("failure", "error")]
            name = case.get("classname", "").removeprefix("tests.test_")
            found[name] = found.get(name, "") + "".join(told)
        return found


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


TOO_MUCH = {
    "sleeps": ("pure", "time.sleep(0)", "sleeps"),
    "clock": ("pure", "time.monotonic()", "reads the real clock"),
    "socket": ("pure", "socket.socket().close()", "opens a socket"),
    "thread": (
        "pure",
        "__import__('threading').Thread(target=print).start()",
        "starts a thread",
    ),
    "process": ("pure", "subprocess.run(['true'])", "starts a process"),
    "process_inprocess": ("inprocess", "subprocess.run(['true'])", "starts a process"),
}
FINE = {
    "fine_inprocess": ("inprocess", "def test(): socket.socket().close()"),
    "fine_system": ("system", "def test(): subprocess.run(['true'])"),
    "fine_pure": ("pure", "async def test():\n    import asyncio; await asyncio.sleep(600)"),
    # What a thread that was there before does is not the doing of the test.
    "fine_thread": (
        "pure",
        "from concurrent.futures import ThreadPoolExecutor\n"
        "OTHER = ThreadPoolExecutor(1)\n"
        "OTHER.submit(int).result()\n"
        "def test(): OTHER.submit(time.sleep, 0).result()",
    ),
}


def test_a_test_that_needs_more_than_its_kind_says_fails(project: Project) -> None:
    for name, (kind, body, _) in TOO_MUCH.items():
        # Caught by the test, it is told all the same.
        caught = f"def test():\n    try:\n        {body}\n    except AssertionError: pass"
        project.write(f"{name}_caught", kind, caught)
        project.write(name, kind, f"def test():\n    {body}")
    for name, (kind, body) in FINE.items():
        project.write(name, kind, body)
    found = project.complaints()
    for name, (_, _, complaint) in TOO_MUCH.items():
        assert f"the test {complaint}" in found.pop(name), name
        assert f"the test {complaint}" in found.pop(f"{name}_caught"), name
    assert found == dict.fromkeys(FINE, "")


LEFT_BEHIND = {
    "signal": ("signal.signal(signal.SIGUSR1, lambda *_: None)", "signal handlers: "),
    "environment": ("os.environ['LEFT'] = 'behind'", "environment: b'LEFT'"),
    "logging": ("logging.getLogger('x').addHandler(H)", "logging handlers: x"),
    "file": ("KEPT.append(open(__file__))", "open files: "),
    "child": ("KEPT.append(subprocess.Popen(['sleep', '600']))", "child processes: "),
    "policy": ("asyncio.set_event_loop_policy(Policy())", "event loop policy: "),
    "directory": ("os.chdir('/')", "working directory: "),
}


def test_a_test_that_leaves_something_behind_fails(project: Project) -> None:
    for name, (body, _) in LEFT_BEHIND.items():
        project.write(
            name,
            "system" if name == "child" else "pure",
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
            def test_that_finds_it_so_and_changes_nothing():
                pass
            """,
        )
    found = project.complaints()
    assert found.keys() == LEFT_BEHIND.keys()
    for name, (_, complaint) in LEFT_BEHIND.items():
        assert complaint in found[name], name
        assert found[name].count("the test left behind") == 1, name


def test_files_of_spark_never_run_beside_others(project: Project) -> None:
    project.write("spark", "pure", "pytestmark = pytest.mark.spark\ndef test(): pass")
    project.write("other", "pure", "def test(): pass")
    done = project.run("pytest")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "Choose a kind with --kind" in done.stderr + done.stdout
    assert "1 passed" in project.pytest("--kind", "spark")


FAILS_ONCE = """
from hypothesis import given, strategies
from pathlib import Path
def test_flaky():
    ran = Path(__file__).with_suffix(".ran")
    if not ran.exists():
        ran.touch()
        pytest.fail("once")
"""
DEFECTS = {
    "pure": ("pure", FAILS_ONCE),
    "inprocess": ("inprocess", FAILS_ONCE),
    "safety": ("system", FAILS_ONCE.replace("def test", "@pytest.mark.safety\ndef test")),
    "property": (
        "system",
        FAILS_ONCE.replace("def test_flaky()", "@given(strategies.just(1))\ndef test_flaky(_)"),
    ),
    "files": (
        "inprocess",
        """
        def test_flaky(tmp_path):
            (tmp_path / "kept.txt").write_text("to look at")
            assert False
        """,
    ),
}


def test_only_what_may_fail_by_chance_is_repeated_and_reported(project: Project) -> None:
    project.write("slow", "system", FAILS_ONCE)
    for name, (kind, body) in DEFECTS.items():
        project.write(name, kind, body)
    kinds = [f"--kind={kind}" for kind in HEADS]
    done = subprocess.run(
        [sys.executable, "tests/run.py", *kinds, "--", "-n0"],
        cwd=project.path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout
    assert done.stdout.endswith("1 passed, 5 failed, 0 skipped\n")
    for name in DEFECTS:
        assert f"failed: tests/test_{name}.py::test_flaky (never repeated)" in done.stdout
    assert done.stdout.count("repeating") == 1
    assert "flaky: tests/test_slow.py::test_flaky" in done.stdout
    flaky = (project.path / ".test-results/flaky.txt").read_text()
    assert flaky == "tests/test_slow.py::test_flaky\n"
    (kept,) = (project.path / ".test-results/files").rglob("test_flaky0/kept.txt")
    assert kept.read_text() == "to look at"

    for name in DEFECTS:
        (project.path / f"tests/test_{name}.py").unlink()
    (project.path / "tests/test_slow.ran").unlink()
    done = subprocess.run(
        [sys.executable, "tests/run.py", "--kind=system", "--", "-n1"],
        cwd=project.path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("1 passed, 0 failed, 0 skipped\n")
    assert not (project.path / ".test-results/files").exists()


def test_a_seed_gives_an_order_of_its_own_and_the_same_each_time(project: Project) -> None:
    for name in "abcdef":
        project.write(name, "pure", "def test_1(): pass\ndef test_2(): pass")

    def order(seed: int) -> list[str]:
        said = project.pytest("-v", f"--order-seed={seed}")
        return [line.split()[0] for line in said.splitlines() if "PASSED" in line]

    first, other = order(1), order(2)
    assert order(1) == first
    assert sorted(other) == sorted(first)
    assert other != first


def test_results_say_what_failed_and_whether_it_may_be_repeated(project: Project) -> None:
    project.write("system", "system", "def test(): assert False\ndef test_fine(): pass")
    project.pytest("--results", "results.json")
    results = json.loads((project.path / "results.json").read_text())
    assert (results["passed"], results["skipped"]) == (1, 0)
    assert results["failed"] == {"tests/test_system.py::test": True}


def test_a_run_says_in_the_end_what_was_skipped_and_why(project: Project) -> None:
    project.write(
        "pure",
        "pure",
        """
        def test_one(): pytest.skip("no browser here")
        def test_two(): pytest.skip("no browser here")
        @pytest.mark.skip(reason="not today")
        def test_three(): pass
        def test_fine(): pass
        """,
    )
    done = subprocess.run(
        [sys.executable, "tests/run.py", "--kind=pure", "--", "-n0"],
        cwd=project.path,
        capture_output=True,
        text=True,
        timeout=wait_seconds_max(),
    )
    assert "skipped: 2 of pure: no browser here\nskipped: 1 of pure: not today\n" in done.stdout
    assert done.stdout.endswith("1 passed, 0 failed, 3 skipped\n")
