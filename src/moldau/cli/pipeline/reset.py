"""`moldau pipeline reset` and `delete`: change a pipeline that is not running."""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import click

from moldau.cli.click_groups import command
from moldau.cli.connection.current import current_security
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import output_option, plain_brokers_option, yes_option
from moldau.cli.output import confirm, counted, emit_rows, say
from moldau.cli.pipeline.kinds import require_spark_extra
from moldau.cli.pipeline.run_options import complete_pipelines, home_option, unknown_pipeline

if TYPE_CHECKING:
    from moldau.model.ids import TopicPartition
    from moldau.spark.pipelines.home import Home
    from moldau.spark.pipelines.status import PipelineStatus

_OFFSET: Final = re.compile(r"([\w.-]+):(\d{1,9})=(\d{1,18})")


def _records(names: Iterable[str], bootstrap: str) -> "dict[str, PipelineStatus]":
    """Their records on the brokers. Raises CommandError while one runs on any machine."""
    from moldau.spark.pipelines.status import StatusTopic

    with StatusTopic(bootstrap, security=current_security()) as board:
        known = board.read()
    found = {name: known[name] for name in names if name in known}
    for name, record in found.items():
        if record.is_alive():
            raise CommandError(
                f"pipeline {name} is running on {record.host} (pid {record.pid}); "
                "nothing was changed",
                hint="stop it first",
            )
    return found


@command(
    "reset",
    examples=(
        "moldau pipeline reset archive-clicks --to earliest --dry-run",
        "moldau pipeline reset archive-clicks --to 2026-11-15T08:00",
        "moldau pipeline reset archive-clicks --to clicks:0=4711 --to clicks:1=4690 -y",
    ),
)
@click.argument("name", shell_complete=complete_pipelines)
@click.option(
    "--to",
    "positions",
    multiple=True,
    required=True,
    metavar="POSITION",
    help="earliest, latest, a time (2026-01-31T12:00 or @-10m), or TOPIC:PARTITION=OFFSET, which "
    "may be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@yes_option
@output_option
@home_option
@plain_brokers_option
@require_spark_extra()
def reset(
    name: str,
    positions: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    output: str,
    home: str,
    brokers: str,
) -> None:
    """Change the offsets where a stopped pipeline continues. Shows the change first.

    The checkpoint is moved aside, not deleted. Data already written is kept.
    """
    from moldau.client.wire.client import KafkaClient
    from moldau.spark.pipelines.home import Home, home_at, planned_reset

    target = parse_target(positions)
    found = Home(home_at(home, name))
    if not found.exists:
        raise unknown_pipeline(name)
    found.check_idle()
    record = _records([name], brokers).get(name)
    if record is not None:
        _check_has_position(record)
    topics = () if record is None else record.settings.get("topics", ())
    with KafkaClient(brokers, security=current_security()) as client:
        rows, starts = planned_reset(client, found, target, topics)
    emit_rows(rows, output, name="topic")
    for line in consequences([row["change"] for row in rows]):
        say(line)
    if dry_run:
        say("nothing was changed")
        return
    confirm(f"Reset {name}?", yes=yes)
    old = found.reset(starts)
    partitions = counted(len(rows), "partition")
    say(f"reset {partitions} of {name}; the next run starts there")
    if old is not None:
        say(f"its old checkpoint is in {old}")


def parse_target(positions: Sequence[str]) -> "int | dict[TopicPartition, int]":
    """A timestamp for all partitions, or offsets. Raises CommandError for an invalid position."""
    from moldau.cli.start_position import parse_position
    from moldau.client.wire.client import OFFSET_EARLIEST, OFFSET_LATEST
    from moldau.model.ids import PartitionIndex, TopicPartition

    matches = [_OFFSET.fullmatch(text.strip()) for text in positions]
    if all(matches):
        return {
            TopicPartition(found[1], PartitionIndex(int(found[2]))): int(found[3])
            for found in matches
            if found
        }
    if len(positions) == 1:
        text = positions[0].strip()
        words = {"earliest": OFFSET_EARLIEST, "latest": OFFSET_LATEST}
        if text in words:
            return words[text]
        position = parse_position("@" + text.removeprefix("@"))
        if position is not None and position.time_ms is not None:
            return position.time_ms
    raise CommandError(
        f"{' '.join(positions)!r} is not earliest, latest, a time or TOPIC:PARTITION=OFFSET",
        hint="one position for all, or an offset per partition: --to clicks:0=10 --to clicks:1=12",
        code=ExitCode.USAGE,
    )


def consequences(changes: Sequence[int | None]) -> list[str]:
    """What the reset means for exactly-once."""
    again = -sum(change for change in changes if change and change < 0)
    skipped = sum(change for change in changes if change and change > 0)
    lines = []
    if again:
        lines.append(
            f"{counted(again, 'record')} will be read and written again, as duplicates: "
            "exactly-once holds within one checkpoint. `moldau pipeline run compact` drops such "
            "duplicates from a table; a topic keeps them"
        )
    if skipped:
        lines.append(f"{counted(skipped, 'record')} will be skipped")
    return lines


def _check_has_position(record: "PipelineStatus") -> None:
    """Raises CommandError for a kind without offsets: each run starts where its options say."""
    from moldau.spark.pipelines.kinds import KINDS

    name, kind = record.name, record.kind
    if kind in KINDS and not KINDS[kind].can_run_continuously:
        raise CommandError(
            f"pipeline {name} cannot be reset: {kind} starts where its options say",
            hint=f"run it with another --name, or again after: moldau pipeline delete {name}",
        )


@command(
    "delete",
    examples=(
        "moldau pipeline delete archive-clicks",
        "moldau pipeline delete archive-clicks archive-views -y",
        "moldau pipeline delete archive-clicks -b broker.example:9092",
    ),
)
@click.argument(
    "names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_pipelines
)
@yes_option
@home_option
@plain_brokers_option
@require_spark_extra()
def delete(names: tuple[str, ...], yes: bool, home: str, brokers: str) -> None:
    """Delete stopped pipelines: their folders with the checkpoints, and their records.

    Tables, topics and committed offsets are kept. A new pipeline of the same name starts from
    scratch, and writes records that it reads again a second time.
    """
    from moldau.client.errors import ClientError
    from moldau.spark.pipelines.home import Home, check_name, home_at

    # All are checked before anything is deleted: a typo must not delete the others.
    homes = {name: Home(home_at(home, check_name(name))) for name in names}
    for found in homes.values():
        found.check_idle()
    records: dict[str, PipelineStatus] = {}
    problem = None
    try:
        records = _records(homes, brokers)
    except ClientError as error:
        problem = error
    for name, found in homes.items():
        # In an object store, only the brokers know whether it runs.
        if name not in records and (not found.exists or (problem and not found.is_local)):
            raise problem or unknown_pipeline(name, "; nothing was deleted")
    for name, found in homes.items():
        if found.exists:
            say(f"{found.location} will be deleted, with the checkpoint")
        if name not in records and not found.is_local:
            say(f"{name} is unknown to the brokers at {brokers}: does it run with others (-b)?")
    listed = ", ".join(homes)
    if problem is not None:
        say(f"no broker responds, so they will still list {listed}: {problem}")
    confirm(f"Delete {listed}?", yes=yes)
    if problem is None and not all(found.is_local for found in homes.values()):
        # One may have been started meanwhile, and an object store has no locks.
        _records(homes, brokers)
    for found in homes.values():
        _delete(found, None if problem else brokers)


def _delete(home: "Home", brokers: str | None) -> None:
    """Delete the folder of a pipeline, and its record unless no broker responds."""
    from moldau.client.errors import ClientError
    from moldau.spark.pipelines.status import StatusTopic

    name = home.name
    if home.exists:
        _remove(home)
    if brokers is not None:
        try:
            with StatusTopic(brokers, security=current_security()) as topic:
                topic.forget(name)
        except ClientError as error:
            raise CommandError(
                f"deleted the folder of {name}, but the brokers still list it: {error}",
                hint=f"retry: moldau pipeline delete {name}",
            ) from error
    click.echo(f"deleted {name}")
    say(f"its committed offsets are kept; delete them: moldau group delete {name}")


def _remove(home: "Home") -> None:
    try:
        home.delete()
    except OSError as error:
        raise CommandError(
            f"cannot delete {error.filename or home.location}: {error.strerror or error}",
            hint="delete the rest by hand",
        ) from error
