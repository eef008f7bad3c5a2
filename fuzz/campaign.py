"""Runs targets one after another, each in a process of its own, and reports what was found."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from fuzz.corpus import grown_of, seeds_of
from fuzz.findings import FOLDER, Finding, read_finding, write_finding
from fuzz.target import Target

LOGS: Final = Path("build/fuzz/logs")
_NICE: Final = 19
_ENDS_LATE_SECONDS: Final = 90
"""After its time: an input may take as long as its hang bound, and coverage is printed."""
_EXECUTED: Final = re.compile(r"stat::number_of_executed_units:\s*(\d+)")
_COVERED: Final = re.compile(r"cov: (\d+).*? corp: (\d+)")
_KILLERS: Final = {"crash": "crash", "timeout": "hang", "oom": "memory", "leak": "memory"}


class Outcome(Struct, frozen=True, kw_only=True):
    """What one target did in its time."""

    target: str
    seconds: float
    executed: int
    covered: int
    """Edges of the product's code."""
    corpus: int
    findings: tuple[Finding, ...] = ()
    problem: str = ""
    """Why it could not be fuzzed."""


def can_fuzz() -> str:
    """Empty, or why there can be no fuzzing here."""
    try:
        import atheris  # noqa: F401
    except ImportError as error:
        return (
            f"atheris cannot be imported by this Python ({error}). Install the extra `fuzz`, "
            "or run `python -m fuzz --check`, which needs no atheris"
        )
    return ""


def run_target(target: Target, seconds: int, seed: int) -> Outcome:
    """One slice."""
    LOGS.mkdir(parents=True, exist_ok=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{target.name}.log"
    before = {path: path.stat().st_mtime_ns for path in FOLDER.iterdir()}
    corpora = [str(grown_of(target))]
    if seeds := seeds_of(target):
        corpora.append(str(seeds[0].parent))
    command = [sys.executable, "-m", "fuzz.worker", target.name, str(seed), str(seconds)]
    began = time.monotonic()
    problem = ""
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [*command, str(FOLDER), *corpora],
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: os.nice(_NICE) and None,
        )
        try:
            status = worker.wait(seconds + _ENDS_LATE_SECONDS)
        except subprocess.TimeoutExpired:
            status, problem = -1, f"it did not end in time; see {log}"
        finally:
            if worker.poll() is None:
                worker.kill()
                worker.wait()
    new = [
        path
        for path in sorted(FOLDER.iterdir())
        if before.get(path) != path.stat().st_mtime_ns and path.name.startswith(target.name)
    ]
    findings = tuple(_as_finding(target, path, log, FOLDER) for path in new)
    if status and not findings and not problem:
        problem = f"the worker ended with status {status}; see {log}"
    return _outcome(target, log, time.monotonic() - began, findings, problem)


def _outcome(
    target: Target, log: Path, seconds: float, findings: tuple[Finding, ...], problem: str
) -> Outcome:
    text = log.read_text(errors="replace")
    executed = _EXECUTED.search(text)
    covered = _COVERED.findall(text)
    return Outcome(
        target=target.name,
        seconds=seconds,
        executed=int(executed[1]) if executed else 0,
        covered=int(covered[-1][0]) if covered else 0,
        corpus=int(covered[-1][1]) if covered else 0,
        findings=findings,
        problem=problem,
    )


def _as_finding(target: Target, path: Path, log: Path, folder: Path) -> Finding:
    """A file of the worker, or an input that ended it, which becomes one."""
    if path.suffix == ".json":
        return read_finding(path)
    kind = path.name.removeprefix(f"{target.name}-").partition("-")[0]
    finding = Finding(
        target=target.name,
        kind=_KILLERS.get(kind, "crash"),
        place="",
        text=f"the process ended; see {log}",
        trace=log.read_text(errors="replace")[-4000:],
        inputs=(path.read_bytes(),),
    )
    path.unlink()
    write_finding(finding, folder)
    return finding


def run_all(
    targets: Sequence[Target], seconds_max: int, seed: int, report: Callable[[str], None]
) -> list[Outcome]:
    """Each target gets the same share of the time. What workers need to start comes on top."""
    share = max(1, seconds_max // len(targets))
    outcomes: list[Outcome] = []
    for place, target in enumerate(targets):
        report(f"[{place + 1}/{len(targets)}] {target.name}: {target.about}, {share} s")
        outcome = run_target(target, share, seed)
        outcomes.append(outcome)
        report(f"    {describe(outcome)}")
        for finding in outcome.findings:
            report(f"    FOUND {finding.kind} at {finding.place}: {finding.text[:150]}")
            report(f"    repeat: {finding.command}")
    return outcomes


def describe(outcome: Outcome) -> str:
    if outcome.problem:
        return f"FAILED: {outcome.problem}"
    rate = outcome.executed / max(outcome.seconds, 0.001)
    return (
        f"{outcome.executed} inputs ({rate:.0f}/s), {outcome.covered} edges, corpus of "
        f"{outcome.corpus}, {len(outcome.findings)} findings"
    )


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """The summary."""
    width = max(len(outcome.target) for outcome in outcomes)
    head = f"{'target':{width}} {'inputs':>10} {'per s':>8} {'edges':>7} {'corpus':>7} {'found':>6}"
    lines = [head]
    for outcome in outcomes:
        rate = outcome.executed / max(outcome.seconds, 0.001)
        found = "failed" if outcome.problem else str(len(outcome.findings))
        lines.append(
            f"{outcome.target:{width}} {outcome.executed:>10} {rate:>8.0f} {outcome.covered:>7} "
            f"{outcome.corpus:>7} {found:>6}"
        )
    return lines
