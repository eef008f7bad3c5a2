"""Owns what is published of the simulation: results in .faults, and their part of the page."""

from pathlib import Path
from typing import Any, Final

import msgspec

from sim.healthy import HealthyRun
from sim.long import Summary

ROOT: Final = Path(__file__).parent.parent
RESULTS: Final = ROOT / ".faults"
PAGE: Final = ROOT / "docs" / "reliability.md"
BEGIN: Final = "<!-- simulated: written by python -m sim --write-docs -->"
END: Final = "<!-- /simulated -->"
_LONG, _HEALTHY = "sim-long.json", "sim-healthy.json"
_MUTANTS, _STATEMENTS = "sim-mutants.json", "sim-statements.json"


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
    """Beside those that were hunted before, and not now."""
    known = {one.name: one for one in _load(_MUTANTS, list[Hunted]) or []}
    known.update((one.name, one) for one in hunted)
    _keep(_MUTANTS, list(known.values()))


def keep_statements(counted: dict[str, tuple[int, int]]) -> None:
    _keep(_STATEMENTS, counted)


def _keep(name: str, what: object) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / name).write_bytes(msgspec.json.format(msgspec.json.encode(what)))


def _load(name: str, kind: Any) -> Any:
    path = RESULTS / name
    return msgspec.json.decode(path.read_bytes(), type=kind) if path.exists() else None


def write_page() -> None:
    """Replace what stands between the two markers. Raises ValueError without them."""
    text = PAGE.read_text()
    if BEGIN not in text or END not in text:
        raise ValueError(f"{PAGE} has no markers {BEGIN} and {END}")
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    PAGE.write_text(f"{head}{BEGIN}\n\n{render()}\n{END}{tail}")


def render() -> str:
    parts = []
    long = _load(_LONG, Summary)
    if long is not None:
        hours = long.simulated_seconds / 3600
        rate = long.simulated_seconds / long.cpu_seconds
        parts.append(
            f"{long.worlds:,} worlds, {long.events:,} events, {hours:,.1f} simulated hours, "
            f"{rate:.0f} times real time per core; {len(long.violations)} violations. Records that "
            f"were acked: {long.counts.get('acked', 0):,}; transactions committed: "
            f"{long.counts.get('txn commit', 0):,}; messages of queues acked: "
            f"{long.counts.get('acked done', 0):,}.\n"
        )
        rows = [f"| {what} | {times:,} |" for what, times in sorted(long.faults.items())]
        parts.append("\n".join(["| fault | times |", "|---|---|", *rows]) + "\n")
    healthy = _load(_HEALTHY, HealthyRun)
    if healthy is not None:
        parts.append(_render_healthy(healthy))
    counted = _load(_STATEMENTS, dict[str, tuple[int, int]])
    if counted is not None:
        rows = [
            f"| `{package}` | {executed:,} of {total:,} | {100 * executed / total:.1f} % |"
            for package, (executed, total) in counted.items()
        ]
        parts.append(
            "\n".join(["| package | statements executed | share |", "|---|---|---|", *rows]) + "\n"
        )
    hunted = _load(_MUTANTS, list[Hunted])
    if hunted is not None:
        rows = [
            f"| {one.layer} | {one.about[0].lower()}{one.about[1:].rstrip('.')} | "
            f"{one.by or 'not found'} | {'' if one.events is None else f'{one.events:,}'} |"
            for one in hunted
        ]
        header = ["| layer | planted mistake | found by | events |", "|---|---|---|---|"]
        parts.append("\n".join([*header, *rows]) + "\n")
    return "\n".join(parts)


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
