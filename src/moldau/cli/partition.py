"""`moldau partition`: move partitions to other brokers, and elect preferred leaders."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from moldau.cli.click_groups import LazyGroup
from moldau.cli.connection.current import current_security
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import (
    ParamType,
    complete_topics,
    output_option,
    plain_brokers_option,
    timeout_option,
    yes_option,
)
from moldau.cli.output import confirm, counted, emit_rows, emit_table, progress_bar, say

if TYPE_CHECKING:
    from moldau.client.wire.partition_admin import (
        Part,
        PartitionAdmin,
        PartitionRefusal,
        PartitionReplicas,
    )

_POLL_SECONDS = 0.3
_REFUSALS_SHOWN_MAX = 10


class BrokerIds(ParamType[tuple[int, ...]]):
    """1,2,4: different broker ids."""

    name = "brokers"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isascii() and part.isdigit() for part in parts):
            self.fail(f"{value!r} is not a list of broker ids; write 1,2,4", param, ctx)
        ids = tuple(int(part) for part in parts)
        if len(set(ids)) != len(ids):
            self.fail(f"{value!r} contains a broker twice", param, ctx)
        return ids


_TARGETS = click.argument(
    "targets", metavar="TOPIC[:PARTITION]...", nargs=-1, shell_complete=complete_topics
)


@click.group(
    "partition",
    cls=LazyGroup,
    lazy={
        "plan": ("partition_plan:plan", "Plan moves that balance a cluster."),
        "apply": ("partition_apply:apply", "Carry out a plan."),
        "recover": (
            "partition_recover:recover",
            "Let partitions go on whose majority of replicas is lost for good.",
        ),
    },
    examples=(
        "moldau partition plan --file plan.json && moldau partition apply plan.json",
        "moldau partition move orders --to 1,2,4",
        "moldau partition elect-leaders",
    ),
)
def partition() -> None:
    """Balance a cluster; move partitions to other brokers; elect preferred leaders."""


def _admin(brokers: str) -> "PartitionAdmin":
    from moldau.client.wire.partition_admin import PartitionAdmin

    return PartitionAdmin(brokers, current_security())


def _targeted(
    admin: "PartitionAdmin", targets: Sequence[str]
) -> "dict[Part, tuple[PartitionReplicas, bool]]":
    """The replicas of the named partitions, and whether each was named by its index."""
    from moldau.client.errors import NotFoundError

    found: dict[Part, tuple[PartitionReplicas, bool]] = {}
    for target in targets:
        topic, colon, text = target.partition(":")
        current = {one.partition: one for one in admin.places(topic)}
        numbers = list(current)
        if colon:
            numbers = partition_numbers(target, text)
        for number in numbers:
            if number not in current:
                raise NotFoundError(
                    f"{topic} has partitions 0 to {len(current) - 1}, not {number}",
                    hint=f"list them: moldau topic describe {topic}",
                )
            found[topic, number] = (current[number], bool(colon))
    return found


def partition_numbers(target: str, text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise CommandError(
            f"{target!r} is not a valid partition",
            hint="write TOPIC or TOPIC:0",
            code=ExitCode.USAGE,
        )
    return [int(part) for part in parts]


@partition.command(
    "move",
    examples=(
        "moldau partition move orders --to 1,2,4",
        "moldau partition move orders:0 --to 4,1,2 -y",
        "moldau partition move orders payments --to 2,3,4 --no-wait",
    ),
)
@click.argument(
    "targets",
    metavar="TOPIC[:PARTITION]...",
    nargs=-1,
    required=True,
    shell_complete=complete_topics,
)
@click.option(
    "--to",
    "replicas",
    type=BrokerIds(),
    required=True,
    metavar="N,N,…",
    help="Broker ids of the new replicas, the preferred leader first.",
)
@click.option(
    "--wait/--no-wait", default=True, help="Wait until the move is done.  [default: wait]"
)
@timeout_option("30m")
@yes_option
@plain_brokers_option
def move(
    targets: tuple[str, ...],
    replicas: tuple[int, ...],
    wait: bool,
    timeout: float,
    yes: bool,
    brokers: str,
) -> None:
    """Move partitions to other brokers, without interrupting clients.

    For a whole topic, preferred leaders are spread over the brokers. A partition given as TOPIC:N
    gets its replicas in the order given.
    """
    with _admin(brokers) as admin:
        current = _targeted(admin, targets)
        _check_known(admin, replicas)
        wanted = {
            part: replicas if exact else _rotated(replicas, part[1])
            for part, (_, exact) in current.items()
        }
        moves = {part: to for part, to in wanted.items() if current[part][0].replicas != to}
        if not moves:
            say("nothing to move: the partitions already have these replicas")
            return
        emit_table(
            [
                {
                    "topic": topic,
                    "partition": number,
                    "from": list(current[topic, number][0].replicas),
                    "to": list(to),
                    "new": [one for one in to if one not in current[topic, number][0].replicas],
                }
                for (topic, number), to in moves.items()
            ]
        )
        confirm(f"Move {counted(len(moves), 'partition')}?", yes=yes)
        refused = admin.move(moves)
        _report_refusals(refused, "move", len(moves))
        moving = {part: to for part, to in moves.items() if part not in _parts(refused)}
        if not wait:
            say(f"moving {counted(len(moving), 'partition')}; watch: moldau partition list-moves")
        else:
            _await_moves(admin, moving, timeout)
            say(f"moved {counted(len(moving), 'partition')}")
        if refused:
            raise CommandError(f"{counted(len(refused), 'partition')} not moved")


def _rotated(replicas: tuple[int, ...], by: int) -> tuple[int, ...]:
    by %= len(replicas)
    return replicas[by:] + replicas[:by]


def _check_known(admin: "PartitionAdmin", replicas: Sequence[int]) -> None:
    known = admin.brokers()
    unknown = [number for number in replicas if number not in known]
    if unknown:
        raise CommandError(
            f"unknown broker {', '.join(map(str, unknown))}",
            hint=f"live brokers: {', '.join(map(str, known))}",
            code=ExitCode.NOT_FOUND,
        )


def _parts(refused: "Sequence[PartitionRefusal]") -> "set[Part]":
    return {(one.topic, one.partition) for one in refused}


def _report_refusals(refused: "Sequence[PartitionRefusal]", doing: str, total: int) -> None:
    """Print rejected partitions; raises CommandError if all were rejected."""
    if not refused:
        return
    lines = [str(one) for one in refused[:_REFUSALS_SHOWN_MAX]]
    if len(refused) > _REFUSALS_SHOWN_MAX:
        lines.append(f"… and {len(refused) - _REFUSALS_SHOWN_MAX} more")
    if len(refused) >= total:
        raise CommandError("\n".join(f"cannot {doing} {line}" for line in lines))
    for line in lines:
        say(f"cannot {doing} {line}")


def _await_moves(
    admin: "PartitionAdmin", moving: "Mapping[Part, Sequence[int]]", seconds_max: float
) -> None:
    deadline = time.monotonic() + seconds_max
    hint = "watch it: moldau partition list-moves · cancel it: moldau partition cancel"
    try:
        with progress_bar("moving", len(moving)) as advance:
            while left := admin.moves(moving):
                advance(len(moving) - len(left))
                if time.monotonic() >= deadline:
                    raise CommandError(
                        f"{counted(len(left), 'partition')} not moved within {seconds_max:g} s",
                        hint=f"it continues in the background; {hint}",
                    )
                time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        say(f"the moves continue in the background; {hint}")
        raise
    _check_arrived(admin, moving)


def _check_arrived(admin: "PartitionAdmin", moving: "Mapping[Part, Sequence[int]]") -> None:
    """Raises CommandError if another client cancelled or changed a move."""
    for topic in dict.fromkeys(topic for topic, _ in moving):
        for one in admin.places(topic):
            wanted = moving.get((topic, one.partition))
            if wanted is not None and set(one.replicas) != set(wanted):
                raise CommandError(
                    f"{topic}:{one.partition} is on {','.join(map(str, one.replicas))}: "
                    "another client cancelled or changed the move",
                    hint=f"check it: moldau topic describe {topic}",
                )


@partition.command(
    "list-moves",
    examples=(
        "moldau partition list-moves",
        "moldau partition list-moves -o json",
        "watch moldau partition list-moves",
    ),
)
@output_option
@plain_brokers_option
def list_moves(output: str, brokers: str) -> None:
    """List moves in progress."""
    with _admin(brokers) as admin:
        rows = [
            {
                "name": f"{one.topic}:{one.partition}",
                "topic": one.topic,
                "partition": one.partition,
                "replicas": list(one.replicas),
                "adding": list(one.adding),
                "removing": list(one.removing),
            }
            for one in admin.moves()
        ]
    if output == "table":
        rows = [{key: row[key] for key in row if key != "name"} for row in rows]
    emit_rows(rows, output, name="name", if_empty="no moves in progress")


@partition.command(
    "cancel",
    examples=(
        "moldau partition cancel orders",
        "moldau partition cancel orders:0 -y",
        "moldau partition cancel        # all moves in progress",
    ),
)
@_TARGETS
@yes_option
@plain_brokers_option
def cancel(targets: tuple[str, ...], yes: bool, brokers: str) -> None:
    """Cancel moves: the partitions keep their old replicas."""
    with _admin(brokers) as admin:
        moving = {(one.topic, one.partition) for one in admin.moves()}
        if targets:
            moving &= set(_targeted(admin, targets))
        if not moving:
            say("nothing to cancel: no such move in progress")
            return
        names = ", ".join(f"{topic}:{number}" for topic, number in sorted(moving))
        confirm(f"Cancel the moves of {names}?", yes=yes)
        refused = admin.move(dict.fromkeys(sorted(moving), None))
        _report_refusals(refused, "cancel the move of", len(moving))
        say(f"cancelled {counted(len(moving) - len(refused), 'move')}")
        if refused:
            raise CommandError(f"{counted(len(refused), 'move')} not cancelled")


@partition.command(
    "elect-leaders",
    examples=(
        "moldau partition elect-leaders",
        "moldau partition elect-leaders orders",
        "moldau partition elect-leaders orders:0 payments",
    ),
)
@_TARGETS
@plain_brokers_option
def elect_leaders(targets: tuple[str, ...], brokers: str) -> None:
    """Make the preferred leader, the first replica, the leader again."""
    from moldau.model.errors import ErrorCode

    with _admin(brokers) as admin:
        parts = list(_targeted(admin, targets)) if targets else None
        elected, refused = admin.elect(parts)
        # Already led by the preferred leader.
        refused = [one for one in refused if one.code != ErrorCode.ELECTION_NOT_NEEDED]
        if elected:
            say(f"elected the preferred leader of {counted(len(elected), 'partition')}")
        elif not refused:
            say("nothing to do: every preferred leader already leads")
        _report_refusals(refused, "elect the preferred leader of", len(refused))
