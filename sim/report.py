"""What is published of the simulation: results in .faults, and their part of the page."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from moldau.model.compiled import is_compiled
from sim.healthy import HealthyRun
from sim.long import Summary
from sim.mutants.hunt import ALL

ROOT: Final = Path(__file__).parent.parent
RESULTS: Final = ROOT / ".faults"
PAGE: Final = ROOT / "docs" / "reliability.md"
_LONG, _HEALTHY = "sim-long.json", "sim-healthy.json"
_MUTANTS, _STATEMENTS = "sim-mutants.json", "sim-statements.json"


class Kept(msgspec.Struct):
    """A result, and the commit that gave it."""

    commit: str
    result: msgspec.Raw


class Hunted(msgspec.Struct):
    """A planted mistake, and what it took to find it."""

    name: str
    layer: str
    about: str
    events: int | None
    """None: it lives."""
    by: str = ""
    """The seed or the script that showed it."""


def keep_long(summary: Summary) -> None:
    _keep(_LONG, summary)


def keep_healthy(run: HealthyRun) -> None:
    _keep(_HEALTHY, run)


def keep_mutants(hunted: list[Hunted]) -> None:
    """Beside those that were hunted before, and not now, if they still exist."""
    names = {mutant.name for mutant in ALL}
    known = {one.name: one for one in _load(_MUTANTS, list[Hunted]) or [] if one.name in names}
    known.update((one.name, one) for one in hunted)
    _keep(_MUTANTS, list(known.values()))


def keep_statements(counted: dict[str, tuple[int, int]]) -> None:
    _keep(_STATEMENTS, counted)


def _keep(name: str, what: object) -> None:
    """The page is about what everybody has, the source: nothing compiled is kept."""
    if is_compiled():
        return
    RESULTS.mkdir(exist_ok=True)
    kept = Kept(_commit(), msgspec.Raw(msgspec.json.encode(what)))
    (RESULTS / name).write_bytes(msgspec.json.format(msgspec.json.encode(kept)))


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty=, changed"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _load(name: str, kind: Any) -> Any:
    path = RESULTS / name
    if not path.exists():
        return None
    return msgspec.json.decode(msgspec.json.decode(path.read_bytes(), type=Kept).result, type=kind)


def write_page() -> None:
    """Replace the part of each result that is kept; the others stay as they were published.

    Raises ValueError where the page has no room for a part.
    """
    text = PAGE.read_text()
    for name, kind, render in _PARTS:
        path = RESULTS / name
        if path.exists():
            kept = msgspec.json.decode(path.read_bytes(), type=Kept)
            part = render(msgspec.json.decode(kept.result, type=kind))
            text = replace_part(text, name, f"Commit {kept.commit}. {part}")
    PAGE.write_text(text)


def replace_part(text: str, name: str, part: str) -> str:
    begin, end = f"<!-- {name}: written by python -m sim --write-docs -->", f"<!-- /{name} -->"
    if begin not in text or end not in text:
        raise ValueError(f"{PAGE} has no markers {begin} and {end}")
    head, rest = text.split(begin)
    return f"{head}{begin}\n\n{part}\n{end}{rest.split(end)[1]}"


def _render_long(long: Summary) -> str:
    hours = long.simulated_seconds / 3600
    rate = long.simulated_seconds / long.cpu_seconds
    rows = [f"| {what} | {times:,} |" for what, times in sorted(long.faults.items())]
    return (
        f"{long.worlds:,} worlds, {long.events:,} events, {hours:,.1f} simulated hours, "
        f"{rate:.0f} times real time per core; {len(long.violations)} violations. Records that "
        f"were acked: {long.counts.get('acked', 0):,}; transactions committed: "
        f"{long.counts.get('txn commit', 0):,}; messages of queues acked: "
        f"{long.counts.get('acked done', 0):,}.\n\n"
        + "\n".join(["| fault | times |", "|---|---|", *rows])
        + "\n"
    )


def _render_healthy(run: HealthyRun) -> str:
    rows = [
        f"| {one.hour} | {one.memory_bytes >> 20} | {one.objects:,} | {one.disk_bytes >> 10:,} |"
        for one in run.samples
        if one.hour % 24 == 0
    ]
    header = ["| hour | memory (MiB) | objects | on disks (KiB) |", "|---|---|---|---|"]
    return (
        f"Without faults, with a rolling restart each hour: {run.hours} simulated hours, "
        f"{run.restarts} restarts, {run.events:,} events, {run.acked:,} records acked; "
        f"{len(run.violations)} violations.\n\n" + "\n".join([*header, *rows]) + "\n"
    )


def _render_statements(counted: dict[str, tuple[int, int]]) -> str:
    rows = [
        f"| `{package}` | {executed:,} of {total:,} | {100 * executed / total:.1f} % |"
        for package, (executed, total) in counted.items()
    ]
    header = ["| package | statements executed | share |", "|---|---|---|"]
    return "What the worlds execute:\n\n" + "\n".join([*header, *rows]) + "\n"


def _render_mutants(hunted: list[Hunted]) -> str:
    rows = [
        f"| {one.layer} | {one.about[0].lower()}{one.about[1:].rstrip('.')} | "
        f"{one.by or 'not found'} | {'' if one.events is None else f'{one.events:,}'} |"
        for one in hunted
    ]
    header = ["| layer | planted mistake | found by | events |", "|---|---|---|---|"]
    return f"{len(hunted)} planted bugs:\n\n" + "\n".join([*header, *rows]) + "\n"


_PARTS: Final[tuple[tuple[str, Any, Callable[[Any], str]], ...]] = (
    (_LONG, Summary, _render_long),
    (_HEALTHY, HealthyRun, _render_healthy),
    (_STATEMENTS, dict[str, tuple[int, int]], _render_statements),
    (_MUTANTS, list[Hunted], _render_mutants),
)
