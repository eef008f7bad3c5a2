"""Owns `moldau partition`: moves of partitions to other brokers, and their preferred leaders."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from moldau.cli.click_groups import Command, LazyGroup
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import (
    DEFAULT_BROKERS,
    Brokers,
    Duration,
    complete_topics,
    output_option,
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

    _IdsParam = click.ParamType[tuple[int, ...]]
else:
    _IdsParam = click.ParamType

_POLL_SECONDS = 0.3
_REFUSALS_SHOWN_MAX = 10


class BrokerIds(_IdsParam):
    """1,2,4: numbers of brokers, each once."""

    name = "brokers"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isascii() and part.isdigit() for part in parts):
            self.fail(f"{value!r} is no list of brokers; write 1,2,4", param, ctx)
        ids = tuple(int(part) for part in parts)
        if len(set(ids)) != len(ids):
            self.fail(f"{value!r} names a broker twice", param, ctx)
        return ids


_BROKERS = click.option(
    "-b",
    "--brokers",
    type=Brokers(),
    envvar="MOLDAU_BROKERS",
    default=DEFAULT_BROKERS,
    show_default=True,
    metavar="HOST:PORT[,…]",
    is_eager=True,
    help="Where to connect; also MOLDAU_BROKERS.",
)
_TARGETS = click.argument(
    "targets", metavar="TOPIC[:PARTITION]...", nargs=-1, shell_complete=complete_topics
)


@click.group(
    "partition",
    cls=LazyGroup,
    examples=(
        "moldau partition move orders --to 1,2,4",
        "moldau partition list-moves",
        "moldau partition elect-leaders",
    ),
)
def partition() -> None:
    """Move partitions to other brokers, and their leaders."""


def _admin(brokers: str) -> "PartitionAdmin":
    from moldau.client.wire.partition_admin import PartitionAdmin

    return PartitionAdmin(brokers)


def _places(
    admin: "PartitionAdmin", targets: Sequence[str]
) -> "dict[Part, tuple[PartitionReplicas, bool]]":
    """Where the named partitions lie, and whether each was named by its number."""
    from moldau.client.errors import NotFoundError

    found: dict[Part, tuple[PartitionReplicas, bool]] = {}
    for target in targets:
        topic, colon, text = target.partition(":")
        places = {place.partition: place for place in admin.places(topic)}
        numbers = list(places)
        if colon:
            numbers = _numbers(target, text)
        for number in numbers:
            if number not in places:
                raise NotFoundError(
                    f"{topic} has partitions 0 to {len(places) - 1}, not {number}",
                    hint=f"look at it: moldau topic describe {topic}",
                )
            found[topic, number] = (places[number], bool(colon))
    return found


def _numbers(target: str, text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise CommandError(
            f"{target!r} is no partition", hint="write TOPIC or TOPIC:0", code=ExitCode.USAGE
        )
    return [int(part) for part in parts]


@partition.command(
    "move",
    cls=Command,
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
    help="The brokers that shall hold it, the preferred leader first.",
)
@click.option("--wait/--no-wait", default=True, help="Until it is done.  [default: wait]")
@click.option(
    "--timeout", type=Duration(), default="30m", show_default=True, help="Longest to wait."
)
@yes_option
@_BROKERS
def move(
    targets: tuple[str, ...],
    replicas: tuple[int, ...],
    wait: bool,
    timeout: float,
    yes: bool,
    brokers: str,
) -> None:
    """Move partitions to other brokers while clients go on.

    For a whole topic the brokers take turns as preferred leader; a partition that is named by its
    number gets them in the order given.
    """
    with _admin(brokers) as admin:
        places = _places(admin, targets)
        _check_known(admin, replicas)
        wanted = {
            part: replicas if exact else _rotated(replicas, part[1])
            for part, (place, exact) in places.items()
        }
        moves = {part: to for part, to in wanted.items() if places[part][0].replicas != to}
        if not moves:
            say("nothing to move: all is there already")
            return
        emit_table(
            [
                {
                    "topic": topic,
                    "partition": number,
                    "from": list(places[topic, number][0].replicas),
                    "to": list(to),
                    "new": [one for one in to if one not in places[topic, number][0].replicas],
                }
                for (topic, number), to in moves.items()
            ]
        )
        confirm(f"Move {counted(len(moves), 'partition')}?", yes=yes)
        refused = admin.move(moves)
        _report_refusals(refused, "move", len(moves))
        going = {part: to for part, to in moves.items() if part not in _parts(refused)}
        if not wait:
            say(f"{counted(len(going), 'partition')} on the way: moldau partition list-moves")
        else:
            _await_moves(admin, going, timeout)
            say(f"moved {counted(len(going), 'partition')}")
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
            f"there is no broker {', '.join(map(str, unknown))}",
            hint=f"brokers that are up: {', '.join(map(str, known))}",
            code=ExitCode.NOT_FOUND,
        )


def _parts(refused: "Sequence[PartitionRefusal]") -> "set[Part]":
    return {(one.topic, one.partition) for one in refused}


def _report_refusals(refused: "Sequence[PartitionRefusal]", doing: str, asked: int) -> None:
    """Say what was refused; raise if that is everything."""
    if not refused:
        return
    lines = [str(one) for one in refused[:_REFUSALS_SHOWN_MAX]]
    if len(refused) > _REFUSALS_SHOWN_MAX:
        lines.append(f"… and {len(refused) - _REFUSALS_SHOWN_MAX} more")
    if len(refused) >= asked:
        raise CommandError("\n".join(f"cannot {doing} {line}" for line in lines))
    for line in lines:
        say(f"cannot {doing} {line}")


def _await_moves(
    admin: "PartitionAdmin", going: "Mapping[Part, Sequence[int]]", seconds_max: float
) -> None:
    deadline = time.monotonic() + seconds_max
    hint = "watch it: moldau partition list-moves · take it back: moldau partition cancel"
    try:
        with progress_bar("moving", len(going)) as advance:
            while left := admin.moves(going):
                advance(len(going) - len(left))
                if time.monotonic() >= deadline:
                    raise CommandError(
                        f"{counted(len(left), 'partition')} not moved within {seconds_max:g} s",
                        hint=f"it goes on by itself; {hint}",
                    )
                time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        say(f"the moves go on by themselves; {hint}")
        raise
    _check_arrived(admin, going)


def _check_arrived(admin: "PartitionAdmin", going: "Mapping[Part, Sequence[int]]") -> None:
    """Somebody else may have taken a move back, or sent a partition elsewhere."""
    for topic in dict.fromkeys(topic for topic, _ in going):
        for place in admin.places(topic):
            wanted = going.get((topic, place.partition))
            if wanted is not None and set(place.replicas) != set(wanted):
                raise CommandError(
                    f"{topic}:{place.partition} is on {','.join(map(str, place.replicas))} now: "
                    "the move was taken back or changed meanwhile",
                    hint=f"look at it: moldau topic describe {topic}",
                )


@partition.command(
    "list-moves",
    cls=Command,
    examples=(
        "moldau partition list-moves",
        "moldau partition list-moves -o json",
        "watch moldau partition list-moves",
    ),
)
@output_option
@_BROKERS
def list_moves(output: str, brokers: str) -> None:
    """List the moves that are under way."""
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
    if output in ("table",):
        rows = [{key: row[key] for key in row if key != "name"} for row in rows]
    emit_rows(rows, output, name="name")
    if not rows and output == "table":
        say("nothing is being moved")


@partition.command(
    "cancel",
    cls=Command,
    examples=(
        "moldau partition cancel orders",
        "moldau partition cancel orders:0 -y",
        "moldau partition cancel        # every move that is under way",
    ),
)
@_TARGETS
@yes_option
@_BROKERS
def cancel(targets: tuple[str, ...], yes: bool, brokers: str) -> None:
    """Take moves back: the partitions stay where they were."""
    with _admin(brokers) as admin:
        going = {(one.topic, one.partition) for one in admin.moves()}
        if targets:
            going &= set(_places(admin, targets))
        if not going:
            say("nothing to take back: none of it is being moved")
            return
        names = ", ".join(f"{topic}:{number}" for topic, number in sorted(going))
        confirm(f"Take back the moves of {names}?", yes=yes)
        refused = admin.move(dict.fromkeys(sorted(going), None))
        _report_refusals(refused, "take back the move of", len(going))
        say(f"took back {counted(len(going) - len(refused), 'move')}")
        if refused:
            raise CommandError(f"{counted(len(refused), 'move')} not taken back")


@partition.command(
    "elect-leaders",
    cls=Command,
    examples=(
        "moldau partition elect-leaders",
        "moldau partition elect-leaders orders",
        "moldau partition elect-leaders orders:0 payments",
    ),
)
@_TARGETS
@_BROKERS
def elect_leaders(targets: tuple[str, ...], brokers: str) -> None:
    """Give partitions back to their preferred leaders, the first of their replicas."""
    from moldau.model.errors import ErrorCode

    with _admin(brokers) as admin:
        parts = list(_places(admin, targets)) if targets else None
        elected, refused = admin.elect(parts)
        # They are as they should be.
        refused = [one for one in refused if one.code != ErrorCode.ELECTION_NOT_NEEDED]
        if elected:
            say(f"{counted(len(elected), 'partition')} led by the preferred broker again")
        elif not refused:
            say("nothing to do: every preferred broker leads already")
        _report_refusals(refused, "elect the preferred leader of", len(refused))
