"""`moldau partition recover`: partitions go on without a majority that is lost for good."""

from typing import TYPE_CHECKING

import click

from moldau.cli.click_groups import command
from moldau.cli.cluster.topology import connect, http_option
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import complete_topics, output_option, yes_option
from moldau.cli.output import confirm, counted, emit_rows, say
from moldau.cli.partition import BrokerIds, partition_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.model.topology import PartitionNamed, PartitionRecovered, Topology

_SECONDS_MAX = 120.0
"""Of one request: every broker is asked, and partitions are recovered one after the other."""


@command(
    "recover",
    examples=(
        "moldau partition recover --lost 2,3 --dry-run     # which, and from which replica",
        "moldau partition recover --lost 2,3",
        "moldau partition recover orders:0 --lost 2,3 -y",
    ),
)
@click.argument(
    "targets", metavar="[TOPIC[:PARTITION]]...", nargs=-1, shell_complete=complete_topics
)
@click.option(
    "--lost",
    type=BrokerIds(),
    required=True,
    metavar="N,N,…",
    help="Brokers whose data directories are lost; they are removed from the cluster for good.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be recovered.")
@yes_option
@output_option
@http_option
def recover(
    targets: tuple[str, ...],
    lost: tuple[int, ...],
    dry_run: bool,
    yes: bool,
    output: str,
    http: str,
) -> int:
    """Let partitions go on whose majority of replicas is lost for good, from one that is left.

    Records that were acknowledged and are only on lost brokers are lost. Try everything else first:
    a disk in another machine is not lost. Without a topic: all partitions that need it.
    """
    from moldau.model.topology import RecoveryRequest

    client, topology = connect(http, call_seconds_max=_SECONDS_MAX)
    wanted = _named(targets, topology) if targets else None
    plan = client.recover(RecoveryRequest(lost=lost, partitions=wanted, dry_run=True)).partitions
    names = ",".join(map(str, lost))
    if not plan:
        say("nothing to recover: no partition has lost a majority of its replicas")
        if not dry_run:
            say(f"to remove brokers that are lost: moldau broker remove {lost[0]}")
        return ExitCode.OK
    possible = [one for one in plan if one.state == "possible"]
    if dry_run or not possible:
        emit_rows(_rows(plan), output, name="partition")
        _say_reasons(plan)
        return ExitCode.OK if possible else ExitCode.FAILED
    for one in plan:
        say(_shown(one))
    say(
        f"records that were acknowledged after these offsets may be lost: the replicas that are "
        f"left cannot know.\nbrokers {names} are removed for good: they can never come back with "
        "their data directories, not even if these are found again.\nbe sure that the processes "
        f"of brokers {names} do not run any more, anywhere"
    )
    confirm(f"Recover {counted(len(possible), 'partition')} without brokers {names}?", yes=yes)
    done = client.recover(RecoveryRequest(lost=lost, partitions=wanted)).partitions
    emit_rows(_rows(done), output, name="partition")
    _say_reasons(done)
    failed = [one for one in done if one.state != "recovered"]
    if failed:
        raise CommandError(
            f"{counted(len(failed), 'partition')} not recovered",
            hint="run the command again: what is done stays done",
        )
    say(
        f"recovered {counted(len(done), 'partition')}; replicas on other brokers are being added: "
        "moldau partition list-moves"
    )
    if targets:
        say(f"others may need it, too: moldau partition recover --lost {names} --dry-run")
    return ExitCode.OK


def _named(targets: "Sequence[str]", topology: "Topology") -> "tuple[PartitionNamed, ...]":
    from moldau.model.topology import PartitionNamed

    counts = {topic.name: len(topic.partitions) for topic in topology.topics}
    found = []
    for target in targets:
        topic, colon, text = target.partition(":")
        if topic not in counts:
            raise CommandError(
                f"topic {topic} does not exist",
                hint="list them: moldau topic list",
                code=ExitCode.NOT_FOUND,
            )
        numbers = partition_numbers(target, text) if colon else range(counts[topic])
        found += [PartitionNamed(topic=topic, partition=number) for number in numbers]
    return tuple(found)


def _rows(partitions: "Sequence[PartitionRecovered]") -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for one in partitions:
        chosen = next((each for each in one.replicas if each.broker == one.survivor), None)
        rows.append(
            {
                "partition": f"{one.topic}:{one.partition}",
                "state": one.state,
                "survivor": one.survivor if chosen else None,
                "last_epoch": chosen.last_epoch if chosen else None,
                "end_offset": chosen.end_offset if chosen else None,
                "high_watermark": chosen.high_watermark if chosen else None,
                "replicas_left": [each.broker for each in one.replicas],
            }
        )
    return rows


def _shown(one: "PartitionRecovered") -> str:
    if one.state != "possible":
        return f"{one.topic}:{one.partition}: cannot be recovered: {one.reason}"
    if one.reason:
        return f"{one.topic}:{one.partition}: {one.reason}"
    lines = [
        f"{one.topic}:{one.partition}: goes on with the replica of broker {one.survivor}",
        *(
            f"  broker {each.broker}: "
            + (
                each.problem
                or f"last epoch {each.last_epoch}, end offset {each.end_offset}, committed as far "
                f"as it knows: {each.high_watermark}"
                + ", not a voter" * (not each.is_voter)
            )
            for each in one.replicas
        ),
    ]
    return "\n".join(lines)


def _say_reasons(partitions: "Sequence[PartitionRecovered]") -> None:
    for one in partitions:
        if one.reason:
            say(f"{one.topic}:{one.partition}: {one.reason}")
