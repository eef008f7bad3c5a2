"""`moldau partition plan`: which replicas to move so that a cluster is balanced, as a file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from moldau.cli.click_groups import command
from moldau.cli.connection.current import current_security
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import (
    Integer,
    complete_topics,
    document_output_option,
    plain_brokers_option,
)
from moldau.cli.output import counted, emit_document, emit_table, format_bytes, say
from moldau.client.errors import NotFoundError

if TYPE_CHECKING:
    from moldau.client.wire.partition_admin import ClusterPlaces, PartitionAdmin
    from moldau.metadata.rebalance import PlanBroker, PlannedMove, PlanPartition

FORMAT: Final = 1


class FileMove(msgspec.Struct, frozen=True, kw_only=True):
    """The new replicas of a partition, the preferred leader first."""

    topic: str
    partition: int
    before: tuple[int, ...] = msgspec.field(name="from")
    after: tuple[int, ...] = msgspec.field(name="to")
    bytes: int = 0
    """That are copied."""


class PlanFile(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, for the cluster that it was made for."""

    format: int = FORMAT
    cluster_id: str
    moves: tuple[FileMove, ...]


def read_plan(path: Path) -> PlanFile:
    """Raises CommandError for a file that is not a plan, or of a newer version."""
    try:
        data = path.read_bytes()
        if path.suffix in (".yaml", ".yml"):
            import yaml

            found = msgspec.convert(yaml.safe_load(data), PlanFile)
        else:
            found = msgspec.json.decode(data, type=PlanFile)
    except (msgspec.ValidationError, msgspec.DecodeError, ValueError) as error:
        raise _no_plan(path, str(error)) from error
    except Exception as error:
        if type(error).__module__.startswith("yaml"):
            raise _no_plan(path, str(error).partition("\n")[0]) from error
        raise
    if found.format != FORMAT:
        raise _no_plan(path, f"its format is {found.format}, this version reads {FORMAT}")
    return found


def _no_plan(path: Path, why: str) -> CommandError:
    return CommandError(
        f"{path} is not a plan ({why})",
        hint=f"make one: moldau partition plan --file {path}",
        code=ExitCode.USAGE,
    )


def write_plan(path: Path, plan: PlanFile) -> None:
    document = msgspec.to_builtins(plan)
    if path.suffix in (".yaml", ".yml"):
        import yaml

        path.write_text(yaml.safe_dump(document, sort_keys=False))
    else:
        path.write_text(json.dumps(document, indent=1) + "\n")


@command(
    "plan",
    examples=(
        "moldau partition plan --file plan.json && moldau partition apply plan.json",
        "moldau partition plan --drain 2 --max-moves 50 --file plan.yaml",
        "moldau partition plan --topic orders --exclude-broker 3 -o json",
    ),
)
@click.option(
    "--topic",
    "--topics",
    "topics",
    multiple=True,
    metavar="TOPIC",
    shell_complete=complete_topics,
    help="Move only partitions of this topic; may be repeated.",
)
@click.option(
    "--drain",
    "drained",
    type=Integer(0),
    multiple=True,
    metavar="N",
    help="Move everything off this broker; may be repeated.",
)
@click.option(
    "--exclude-broker",
    "excluded",
    type=Integer(0),
    multiple=True,
    metavar="N",
    help="Move nothing to this broker; may be repeated.",
)
@click.option("--max-moves", type=Integer(0), help="Partitions that move data, at most.")
@click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the plan to this file (.json or .yaml), for moldau partition apply.",
)
@document_output_option
@plain_brokers_option
def plan(
    topics: tuple[str, ...],
    drained: tuple[int, ...],
    excluded: tuple[int, ...],
    max_moves: int | None,
    path: Path | None,
    output: str,
    brokers: str,
) -> None:
    """Plan moves that balance replicas, disks and leaders of a cluster. Changes nothing.

    Replicas of a partition go to different machines and racks where there are enough of them.
    Partitions that are being moved are left alone.
    """
    from moldau.client.wire.partition_admin import PartitionAdmin
    from moldau.metadata.rebalance import plan_moves

    with PartitionAdmin(brokers, current_security()) as admin:
        places = admin.cluster()
        known, partitions = planner_input(admin, places, topics, drained, excluded)
    moves = plan_moves(known, partitions, moves_max=max_moves)
    rows = broker_rows(known, partitions, moves)
    made = PlanFile(
        cluster_id=places.cluster_id,
        moves=tuple(
            FileMove(
                topic=one.topic,
                partition=one.partition,
                before=one.before,
                after=one.after,
                bytes=one.bytes_moved,
            )
            for one in moves
        ),
    )
    total = sum(one.bytes_moved for one in moves)
    document = {**msgspec.to_builtins(made), "bytes": total, "brokers": rows}
    if not emit_document(document, output, name="cluster_id"):
        _show(made.moves, rows)
    data = sum(bool(one.added) for one in moves)
    say(
        f"{counted(data, 'partition')} would move data, {format_bytes(total)} in all; "
        f"{counted(len(moves) - data, 'partition')} would only change the preferred leader"
        if moves
        else "nothing to move: the cluster is balanced"
    )
    for row in rows:
        if row["broker"] in drained and row["replicas_after"]:
            # Otherwise the plan reads as if the broker were empty after it.
            say(
                f"broker {row['broker']} would keep {counted(row['replicas_after'], 'replica')}"
                + ": there are too few other brokers that can take them"
                * (not topics and max_moves is None)
            )
    if path is not None:
        # Also without moves: an older plan in this file must not be carried out.
        write_plan(path, made)
        say(f"wrote {path}" + f"; carry it out: moldau partition apply {path}" * bool(moves))


def _show(moves: Sequence[FileMove], rows: Sequence[dict[str, Any]]) -> None:
    if moves:
        emit_table(
            [
                {
                    "topic": one.topic,
                    "partition": one.partition,
                    "from": list(one.before),
                    "to": list(one.after),
                    "copied": format_bytes(one.bytes) if one.bytes else None,
                }
                for one in moves
            ]
        )
        click.echo()
    emit_table(
        [{**row, "bytes": format_bytes(row["bytes"]), "bytes_after": format_bytes(
            row["bytes_after"])} for row in rows]
    )  # fmt: skip


def planner_input(
    admin: "PartitionAdmin",
    places: "ClusterPlaces",
    topics: Sequence[str],
    drained: Sequence[int],
    excluded: Sequence[int],
) -> "tuple[list[PlanBroker], list[PlanPartition]]":
    """What the planner reads, of the cluster as it is. Raises CommandError and NotFoundError."""
    from moldau.metadata.rebalance import PlanBroker, PlanPartition
    from moldau.model.ids import BrokerId, TopicId

    ids = {one.id for one in places.brokers}
    for number in (*drained, *excluded):
        if number not in ids:
            raise NotFoundError(
                f"there is no live broker {number}",
                hint=f"live brokers: {', '.join(map(str, sorted(ids)))}",
            )
    for topic in topics:
        if topic not in places.topic_ids:
            raise NotFoundError(
                f"topic {topic} does not exist", hint="list them: moldau topic list"
            )
    for one in places.brokers:
        if one.sizes is None:
            say(f"broker {one.id} does not respond: nothing is moved to it")
    if ids <= {*drained}:
        raise CommandError("no broker would be left", code=ExitCode.USAGE)
    moving = {(one.topic, one.partition): one for one in admin.moves()}
    sizes: dict[tuple[str, int], int] = {}
    for one in places.brokers:
        for part, size in (one.sizes or {}).items():
            sizes[part] = max(size, sizes.get(part, 0))
    known = [
        PlanBroker(
            BrokerId(one.id),
            one.rack,
            takes=one.sizes is not None
            and not one.is_draining
            and one.id not in (*drained, *excluded),
            leaves=one.id in drained,
            disk_free_bytes=one.free_bytes,
            disk_total_bytes=one.total_bytes,
            machine=one.machine,
        )
        for one in places.brokers
    ]
    partitions = []
    for place in places.partitions:
        key = place.topic, place.partition
        move = moving.get(key)
        replicas = place.replicas
        if move is not None:
            replicas = tuple(one for one in move.replicas if one not in move.removing)
        partitions.append(
            PlanPartition(
                *key,
                replicas=tuple(BrokerId(one) for one in replicas),
                size_bytes=sizes.get(key, 0),
                fixed=move is not None or (bool(topics) and place.topic not in topics),
                topic_id=TopicId(places.topic_ids[place.topic]),
            )
        )
    return known, partitions


def broker_rows(
    brokers: "Sequence[PlanBroker]",
    partitions: "Sequence[PlanPartition]",
    moves: "Sequence[PlannedMove]",
) -> list[dict[str, Any]]:
    """What each broker holds before and after the moves."""
    changed = {(one.topic, one.partition): one.after for one in moves}
    later = [one._replace(replicas=changed.get(one.key, one.replicas)) for one in partitions]
    rows = []
    for broker in sorted(brokers):
        row: dict[str, Any] = {"broker": broker.id, "rack": broker.rack, "machine": broker.machine}
        for suffix, state in (("", partitions), ("_after", later)):
            held = [one for one in state if broker.id in one.replicas]
            row[f"replicas{suffix}"] = len(held)
            row[f"leaders{suffix}"] = sum(one.replicas[0] == broker.id for one in held)
            row[f"bytes{suffix}"] = sum(one.size_bytes for one in held)
        rows.append(row)
    return rows
