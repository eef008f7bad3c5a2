"""Runs the tests, each kind in processes of its own, and says in the end how it went.

A test of the kinds system and spark that failed is run once more, alone, after all others. If it
passes then, the run is green, and names it as flaky. See tests/helpers/harness for the kinds, and
for what is never repeated.

    python tests/run.py                        everything
    python tests/run.py --kind pure            one kind; several times for several
    python tests/run.py --order-seed 7         everything, in a random order
    python tests/run.py -- tests/log -x        a part, with options of pytest
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / ".test-results"
FLAKY = RESULTS / "flaky.txt"

LANES = (("system",), ("pure", "inprocess", "spark"))
"""The kinds of a lane run one after the other, those that are quickest to tell of a mistake first.
Two lanes, since kinds with sockets and processes wait for half of their time; that of system takes
as long as all others."""
ASKED = (("machine",),)
"""What runs only if its kind is named."""
PROCESSES = {"pure": 2, "inprocess": 4, "system": 4, "spark": 0, "machine": 0}
PROGRESS_SECONDS = 60
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 1 << 30
"""Ten times what all tests together were seen to need at once."""
LEFT_OVER = RESULTS / "files"
"""Of tests that failed."""
NO_TESTS = 5
"""pytest's exit code where nothing was to be run."""


@dataclass
class Outcome:
    kind: str
    code: int = 0
    passed: int = 0
    skipped: int = 0
    skips: dict[str, int] = field(default_factory=dict)
    """How many tests were skipped, by reason."""
    failed: dict[str, bool] = field(default_factory=dict)
    """By test, whether it may be repeated."""
    seconds: float = 0.0
    is_broken: bool = field(init=False)
    """Whether pytest itself gave up, so that its count means nothing."""

    def __post_init__(self) -> None:
        self.is_broken = self.code not in (0, 1, NO_TESTS) or (self.code == 1 and not self.failed)


def main() -> int:
    options = parse()
    RESULTS.mkdir(exist_ok=True)
    FLAKY.unlink(missing_ok=True)
    extra = [*options.pytest, *order(options.order_seed)]
    wanted = options.kind or [kind for lane in LANES for kind in lane]
    lanes = [[kind for kind in lane if kind in wanted] for lane in LANES + ASKED]
    with temporary_folder():
        with ThreadPoolExecutor(len(lanes)) as pool:
            found = pool.map(lambda lane: [run_kind(kind, extra) for kind in lane], lanes)
            outcomes = [outcome for lane in found for outcome in lane]
        flaky = repeat(outcomes)
    return conclude(outcomes, flaky)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = [kind for lane in LANES + ASKED for kind in lane]
    parser.add_argument("--kind", action="append", choices=kinds, help="only tests of this kind")
    parser.add_argument("--order-seed", type=int, help="run the tests in a random order")
    parser.add_argument("pytest", nargs="*", help="paths and options for pytest, after --")
    return parser.parse_args()


@contextmanager
def temporary_folder() -> Iterator[None]:
    """Temporary files are in memory where there is enough of it. Tests kill processes and cut the
    power of disks that they make, never of this machine's: that it is slow proves nothing."""
    shutil.rmtree(LEFT_OVER, ignore_errors=True)
    for left in MEMORY.glob("moldau-tests-*"):
        if not Path(f"/proc/{left.name.split('-')[2]}").exists():
            shutil.rmtree(left, ignore_errors=True)
    place = MEMORY if has_room(MEMORY) else None
    folder = tempfile.mkdtemp(prefix=f"moldau-tests-{os.getpid()}-", dir=place)
    os.environ["TMPDIR"] = folder
    try:
        yield
    finally:
        # pytest leaves the files of failed tests alone.
        if any(Path(folder).glob("pytest-of-*/*/*/*")):
            # A socket among them cannot be copied; all else is.
            with suppress(shutil.Error):
                shutil.copytree(folder, LEFT_OVER, symlinks=True)
            say(f"\nfiles of failed tests are in {LEFT_OVER.relative_to(ROOT)}")
        shutil.rmtree(folder, ignore_errors=True)


def has_room(place: Path) -> bool:
    try:
        found = os.statvfs(place)
    except OSError:
        return False
    is_executable = not found.f_flag & os.ST_NOEXEC
    return is_executable and found.f_bavail * found.f_frsize >= MEMORY_BYTES_MIN


def order(seed: int | None) -> list[str]:
    """Chance belongs to such runs alone: those that decide what lands repeat the same examples."""
    if seed is None:
        return []
    return [f"--order-seed={seed}", f"--hypothesis-seed={seed}"]


def run_kind(kind: str, extra: list[str]) -> Outcome:
    # Files as a whole, since their tests share brokers; pure tests share nothing.
    by = "worksteal" if kind == "pure" else "loadfile"
    processes = PROCESSES[kind]
    spread = ["-n", str(processes), "--dist", by] if processes else []
    return run_pytest(kind, ["--kind", kind, *spread, *extra])


def run_pytest(name: str, arguments: list[str]) -> Outcome:
    results, log = RESULTS / f"{name}.json", RESULTS / f"{name}.txt"
    results.unlink(missing_ok=True)
    say(f"{name}: running; its output goes to {log.relative_to(ROOT)}")
    command = [sys.executable, "-m", "pytest", "--results", str(results), *arguments]
    with log.open("w") as sink:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=sink, stderr=subprocess.STDOUT, env=environment()
        )
        code = wait(name, process, log)
    found = json.loads(results.read_text()) if results.exists() else {}
    text = log.read_text(errors="replace")
    say(text if code not in (0, NO_TESTS) else text.strip().rpartition("\n")[2])
    return Outcome(name, code, **found)


def environment() -> dict[str, str]:
    """Tests are rewritten and compiled once, not by every process: that takes half a minute."""
    return {key: os.environ[key] for key in os.environ if key != "PYTHONDONTWRITEBYTECODE"}


def wait(name: str, process: subprocess.Popen[bytes], log: Path) -> int:
    while True:
        try:
            return process.wait(PROGRESS_SECONDS)
        except subprocess.TimeoutExpired:
            done = re.findall(r"\[ *(\d+%)\]", log.read_text(errors="replace"))
            say(f"{name}: {done[-1] if done else '0%'} done")


def repeat(outcomes: list[Outcome]) -> list[str]:
    """The failed tests that passed when they were run alone; what is left in `failed` did not."""
    flaky = []
    for outcome in outcomes:
        for test in [test for test, may_repeat in outcome.failed.items() if may_repeat]:
            say(f"\nrepeating {test}, alone")
            again = run_pytest("repeated", ["--kind", outcome.kind, test])
            if again.code == 0 and again.passed:
                flaky.append(test)
                del outcome.failed[test]
                outcome.passed += 1
    return flaky


def conclude(outcomes: list[Outcome], flaky: list[str]) -> int:
    say(f"\n{'kind':<10} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}")
    for one in outcomes:
        say(
            f"{one.kind:<10} {one.passed:>7} {len(one.failed):>7} {one.skipped:>8}"
            f" {one.seconds:>8.0f}"
        )
    for one in outcomes:
        for test, may_repeat in one.failed.items():
            say(f"failed: {test}" + ("" if may_repeat else " (never repeated)"))
    for one in outcomes:
        for reason, count in one.skips.items():
            say(f"skipped: {count} of {one.kind}: {reason}")
    if flaky:
        FLAKY.write_text("".join(f"{test}\n" for test in flaky))
        say(f"flaky: {', '.join(flaky)} (also in {FLAKY.relative_to(ROOT)})")
    broken = [one.kind for one in outcomes if one.is_broken]
    if broken:
        say(f"error: pytest did not get to the end of: {', '.join(broken)}")
    passed, failed = sum(one.passed for one in outcomes), sum(len(one.failed) for one in outcomes)
    say(f"{passed} passed, {failed} failed, {sum(one.skipped for one in outcomes)} skipped")
    if not passed and not failed and not broken:
        say("error: no test was found")
    return 0 if passed and not failed and not broken else 1


_output = threading.Lock()


def say(text: str) -> None:
    with _output:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
