"""`moldau partition apply`: carries out a plan, a few partitions at a time; can be repeated."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moldau.cli.click_groups import command
from moldau.cli.connection.current import current_security
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import Integer, plain_brokers_option, timeout_option, yes_option
from moldau.cli.output import confirm, counted, format_bytes, progress_bar, say
from moldau.cli.partition_plan import FileMove, PlanFile, read_plan
from moldau.model.errors import ErrorCode

if TYPE_CHECKING:
    from moldau.client.wire.partition_admin import (
        ClusterPlaces,
        Part,
        PartitionAdmin,
        PartitionMove,
        PartitionRefusal,
    )

_POLL_SECONDS = 0.3
_DIFFERENCES_MAX = 10
_AGAIN = "the rest of the plan is carried out when you run the same command again"


@command(
    "apply",
    examples=(
        "moldau partition apply plan.json",
        "moldau partition apply plan.json -y --batch 2     # gently: two partitions at a time",
        "moldau partition apply plan.json --dry-run        # does it still fit?",
    ),
)
@click.argument("path", metavar="PLAN", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--batch",
    type=Integer(1),
    default=8,
    show_default=True,
    help="Partitions that move at the same time.",
)
@click.option("--dry-run", is_flag=True, help="Only check whether the plan fits the cluster.")
@timeout_option("1h", "Give up when a batch takes longer than this.")
@yes_option
@plain_brokers_option
def apply(path: Path, batch: int, dry_run: bool, timeout: float, yes: bool, brokers: str) -> None:
    """Carry out a plan of `moldau partition plan`, without interrupting clients.

    Refuses a plan that does not fit the cluster. Moves that are done already are skipped, so a plan
    that was interrupted is continued by the same command.
    """
    from moldau.client.wire.partition_admin import PartitionAdmin

    plan = read_plan(path)
    with PartitionAdmin(brokers, current_security()) as admin:
        due = due_moves(plan, admin.cluster(), admin.moves())
        done = len(plan.moves) - len(due)
        if done:
            say(f"{done} of {counted(len(plan.moves), 'move')} already done")
        if not due:
            say("nothing to move" if plan.moves else "nothing to do: the plan has no moves")
            return
        total = sum(move.bytes for move in due)
        if dry_run:
            say(f"the plan fits: {counted(len(due), 'move')}, {format_bytes(total)}")
            return
        confirm(f"Move {counted(len(due), 'partition')} ({format_bytes(total)})?", yes=yes)
        try:
            _carry_out(admin, due, batch, timeout)
        except KeyboardInterrupt:
            say(f"moves that were started go on in the background; {_AGAIN}")
            raise
        _, refused = admin.elect([(move.topic, move.partition) for move in due])
        say(f"moved {counted(len(due), 'partition')}")
        _say_not_elected(refused)


def _say_not_elected(refused: "Sequence[PartitionRefusal]") -> None:
    """No failure of the plan: the cluster elects preferred leaders by itself, minutes later."""
    found = [one for one in refused if one.code != ErrorCode.ELECTION_NOT_NEEDED]
    if not found:
        return
    for one in found[:_DIFFERENCES_MAX]:
        say(f"not led by its preferred leader yet: {one}")
    if len(found) > _DIFFERENCES_MAX:
        say(f"… and {counted(len(found) - _DIFFERENCES_MAX, 'more partition')}")
    say("the cluster does this itself within minutes; sooner: moldau partition elect-leaders")


def due_moves(
    plan: PlanFile, places: "ClusterPlaces", moving: "Sequence[PartitionMove]"
) -> list[FileMove]:
    """The moves that are not done. Raises CommandError with all that does not fit the cluster."""
    if plan.cluster_id != places.cluster_id:
        raise CommandError(
            f"the plan is for cluster {plan.cluster_id}, and this is {places.cluster_id}",
            hint="other address: -b HOST:PORT or MOLDAU_BROKERS",
        )
    live = {broker.id for broker in places.brokers}
    now = {(one.topic, one.partition): one.replicas for one in places.partitions}
    going = {(one.topic, one.partition): one for one in moving}
    due, wrong = [], []
    for move in plan.moves:
        part = (move.topic, move.partition)
        name = f"{move.topic}:{move.partition}"
        missing = sorted({*move.after} - live)
        if part not in now:
            wrong.append(f"{name} does not exist any more")
        elif part in going:
            if _target(going[part]) == {*move.after}:
                due.append(move)
            else:
                wrong.append(f"{name} is being moved to other brokers")
        elif now[part] == move.after:
            continue
        elif missing:
            wrong.append(f"{name} would move to broker {missing[0]}, which is not alive")
        elif now[part] != move.before:
            wrong.append(
                f"{name} is on {_listed(now[part])}, and was on {_listed(move.before)} when the "
                "plan was made"
            )
        else:
            due.append(move)
    if wrong:
        shown = wrong[:_DIFFERENCES_MAX]
        if len(wrong) > _DIFFERENCES_MAX:
            shown.append(f"… and {len(wrong) - _DIFFERENCES_MAX} more differences")
        raise CommandError(
            "\n".join(["the plan does not fit the cluster; nothing was moved", *shown]),
            hint="make a new one: moldau partition plan --file PLAN",
            code=ExitCode.FAILED,
        )
    return due


def _listed(replicas: Sequence[int]) -> str:
    return ",".join(map(str, replicas))


def _target(move: "PartitionMove") -> set[int]:
    return {*move.replicas} - {*move.removing}


def _carry_out(
    admin: "PartitionAdmin", due: Sequence[FileMove], batch: int, seconds_max: float
) -> None:
    """Batch after batch. Raises CommandError if a move is rejected, changed or too slow."""
    going = {(one.topic, one.partition) for one in admin.moves()}
    with progress_bar("moving", len(due)) as advance:
        for at in range(0, len(due), batch):
            some = {(one.topic, one.partition): one.after for one in due[at : at + batch]}
            refused = admin.move({part: to for part, to in some.items() if part not in going})
            started = {part: to for part, to in some.items()
                       if part not in {(one.topic, one.partition) for one in refused}}  # fmt: skip
            _await_batch(admin, started, seconds_max, partial(_advance, advance, at))
            if refused:
                lines = [f"cannot move {one}" for one in refused[:_DIFFERENCES_MAX]]
                raise CommandError("\n".join(lines), hint=_AGAIN)


def _advance(advance: Callable[[int], None], done: int, count: int) -> None:
    advance(done + count)


def _await_batch(
    admin: "PartitionAdmin",
    started: "Mapping[Part, Sequence[int]]",
    seconds_max: float,
    advance: Callable[[int], None],
) -> None:
    deadline = time.monotonic() + seconds_max
    while started and (left := admin.moves(started)):
        advance(len(started) - len(left))
        if time.monotonic() >= deadline:
            raise CommandError(
                f"{counted(len(left), 'partition')} not moved within {seconds_max:g} s",
                hint="it continues in the background; watch it: moldau partition list-moves · "
                f"{_AGAIN}",
            )
        time.sleep(_POLL_SECONDS)
    for topic in dict.fromkeys(topic for topic, _ in started):
        for one in admin.places(topic):
            wanted = started.get((topic, one.partition))
            if wanted is not None and {*wanted} != {*one.replicas}:
                raise CommandError(
                    f"{topic}:{one.partition} is on {_listed(one.replicas)}: another client "
                    "cancelled or changed the move",
                    hint="make a new plan: moldau partition plan --file PLAN",
                )
    advance(len(started))
