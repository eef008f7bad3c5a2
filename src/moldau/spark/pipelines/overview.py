"""Owns what is known of all pipelines: from their folders on this machine, and from the broker."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from moldau.client.errors import ClientError, NotFoundError
from moldau.spark.pipelines.home import homes
from moldau.spark.pipelines.record import Record, now_ms
from moldau.spark.pipelines.state import Board

LOOK_SECONDS_MAX: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Pipelines by name, and why the broker's view is missing, if it is."""

    records: dict[str, Record]
    problem: ClientError | None = None


def overview(root: Path, bootstrap: str, *, seconds_max: float = LOOK_SECONDS_MAX) -> Overview:
    """Both views as one: of a pipeline in both, what was said last."""
    records = local_records(root)
    problem = None
    try:
        with Board(bootstrap, seconds_max=seconds_max) as board:
            published = board.read()
    except ClientError as error:
        problem = error
    else:
        for name, record in published.items():
            known = records.get(name)
            # What stands in the folder is never older than what that process published.
            is_same_run = known is not None and known.key == record.key
            if known is None or (not is_same_run and record.updated_at > known.updated_at):
                records[name] = record
    return Overview(records=dict(sorted(records.items())), problem=problem)


def local_records(root: Path) -> dict[str, Record]:
    """What the folders of this machine say."""
    found = {home.name: home.read_state() for home in homes(root)}
    return {name: record for name, record in found.items() if record is not None}


def find(root: Path, bootstrap: str, name: str) -> Record:
    """One of them. Raises NotFoundError, or why the brokers could not be asked."""
    found = overview(root, bootstrap)
    if name in found.records:
        return found.records[name]
    if found.problem is not None:
        raise found.problem
    raise unknown(name)


def unknown(name: str) -> NotFoundError:
    return NotFoundError(
        f"there is no pipeline {name}",
        hint="list them: moldau pipeline list · other folder or brokers: --home DIR, -b HOST:PORT",
    )


def described(record: Record) -> dict[str, Any]:
    """As plain values for those who read JSON: the state that is shown, and for how long."""
    plain: dict[str, Any] = msgspec.to_builtins(record)
    now = now_ms()
    is_alive = record.is_alive(now)
    return {
        **plain,
        "state": record.shown_state(now),
        "uptime_seconds": (now - record.started_at) / 1000 if is_alive else None,
    }
