"""`moldau cluster recover`: a cluster whose metadata has lost its majority for good."""

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from moldau.cli.click_groups import LazyGroup
from moldau.cli.errors import CommandError
from moldau.cli.options import Integer, ParamType, yes_option
from moldau.cli.output import confirm_by_word, counted, emit_table, progress_bar, say

if TYPE_CHECKING:
    from moldau.server.recovery.plan import Plan, PlannedSurvivor

_NAMES_MAX: Final = 10
_F = TypeVar("_F", bound=Callable[..., Any])
_DATA_DIR: Final = click.option(
    "--data-dir",
    "data_dir",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="The data directory of the stopped broker.",
)


def _file_option(what: str) -> Callable[[_F], _F]:
    return click.option(
        "--file",
        "path",
        type=click.Path(dir_okay=False, path_type=Path),
        required=True,
        metavar="FILE",
        help=f"Write the {what} to this file.",
    )


@click.group(
    "recover",
    cls=LazyGroup,
    examples=(
        "moldau cluster recover collect --data-dir /var/lib/moldau --file survivor-1.json",
        "moldau cluster recover plan survivor-1.json --lost 2,3 --file plan.json",
        "moldau cluster recover apply plan.json --data-dir /var/lib/moldau",
    ),
)
def recover() -> None:
    """Continue a cluster whose metadata has lost its majority for good.

    For the case that no other is left: the disks of a majority are lost, and records with them. All
    brokers that are left are stopped for it. Read docs/operate/disaster.md first.
    """


@recover.command(
    "collect",
    examples=(
        "moldau cluster recover collect --data-dir /var/lib/moldau --file survivor-1.json",
        "moldau cluster recover collect --data-dir data1 --file survivor-1.json",
        "moldau cluster recover collect --data-dir .moldau-cluster/broker-1 --file survivor-1.json",
    ),
)
@_file_option("survey")
@_DATA_DIR
def collect(path: Path, data_dir: Path) -> None:
    """Look at the data directory of a stopped broker, for a plan. Changes nothing in it.

    The file has no messages and no passwords. Run it for every broker whose disk is left.
    """
    import msgspec

    from moldau.server.recovery.directories import collect as survey

    found = survey(data_dir)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    corrupt = sum(bool(part.corrupt) for part in found.partitions)
    say(
        f"wrote {path}: broker {found.broker_id} of cluster {found.cluster_id}, "
        f"{counted(len(found.partitions), 'replica')}" + f", {corrupt} corrupt" * bool(corrupt)
    )


class _BrokerIds(ParamType[tuple[int, ...]]):
    name = "ids"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        each = Integer(0)
        return tuple(each.convert(part.strip(), param, ctx) for part in str(value).split(","))


@recover.command(
    "plan",
    examples=(
        "moldau cluster recover plan survivor-1.json --lost 2,3 --file plan.json",
        "moldau cluster recover plan survivor-*.json --lost 3,4,5 --file plan.json",
        "moldau cluster recover plan survivor-1.json --lost 2 --lost 3 --file plan.json",
    ),
)
@click.argument(
    "surveys",
    metavar="SURVEY...",
    nargs=-1,
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
)
@click.option(
    "--lost",
    type=_BrokerIds(),
    multiple=True,
    required=True,
    metavar="N,N",
    help="Brokers whose disks are lost for good; may be repeated.",
)
@_file_option("plan")
def plan(surveys: tuple[Path, ...], lost: tuple[tuple[int, ...], ...], path: Path) -> None:
    """Decide how the cluster continues, and show what is lost. Changes nothing.

    Needs the surveys of all brokers that are left. Lost brokers can never come back: the cluster
    gets another id, and refuses them. Each plan has another one: apply the same to all brokers.
    """
    import msgspec

    from moldau.model.ids import BrokerId, TimestampMs
    from moldau.server.recovery.directories import read_survey
    from moldau.server.recovery.plan import make_plan

    if path.exists():
        # Each plan has a cluster id of its own: brokers with different plans refuse each other.
        raise CommandError(
            f"{path} exists, and is not written over",
            hint="a plan that was applied to one broker must be applied to all; if it was not "
            "applied to any, remove the file",
        )
    made = make_plan(
        [read_survey(each) for each in surveys],
        {BrokerId(number) for numbers in lost for number in numbers},
        chance=uuid.uuid4(),
        now_ms=TimestampMs(time.time_ns() // 1_000_000),
    )
    _show(made)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n")
    names = ", ".join(str(one.broker_id) for one in made.survivors)
    say(
        f"wrote {path}; carry it out for each broker that is left ({names}): "
        f"moldau cluster recover apply {path} --data-dir DIR"
    )


def _show(plan: "Plan") -> None:
    rows = [
        {
            "topic": one.topic,
            "partitions": sum(
                map(len, (one.whole, one.recovered, one.empty, one.damaged)),
            ),
            "complete": len(one.whole),
            "from_one_replica": len(one.recovered),
            "empty": len(one.empty),
            "offline": len(one.damaged),
        }
        for one in plan.topics
    ]
    if rows:
        emit_table(rows)
    say(
        f"the metadata is that of broker {plan.metadata_broker}: topics, users and settings that "
        "were created or changed last may be missing"
    )
    _say_partitions(
        plan,
        "recovered",
        "to continue from one replica; records that only lost brokers had are lost",
    )
    _say_partitions(
        plan, "empty", "without any replica: all records are lost, it begins again as empty"
    )
    _say_partitions(
        plan,
        "damaged",
        "with corrupt replicas only, which stays offline: delete the topic, or restore it from a "
        "backup",
    )
    for warning in plan.warnings:
        say(f"warning: {warning}")
    say(f"the cluster continues as {plan.new_cluster_id}, and refuses all lost brokers for good")


def _say_partitions(plan: "Plan", kind: str, what: str) -> None:
    names = [f"{one.topic}-{index}" for one in plan.topics for index in getattr(one, kind)]
    if names:
        more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
        say(f"{counted(len(names), 'partition')} {what}: {', '.join(names[:_NAMES_MAX])}{more}")


@recover.command(
    "apply",
    examples=(
        "moldau cluster recover apply plan.json --data-dir /var/lib/moldau",
        "moldau cluster recover apply plan.json --data-dir .moldau-cluster/broker-1 -y",
        "sudo -u moldau moldau cluster recover apply plan.json --data-dir /var/lib/moldau",
    ),
)
@click.argument(
    "plan_file",
    metavar="PLAN",
    type=click.Path(dir_okay=False, path_type=Path),
)
@_DATA_DIR
@yes_option
def apply(plan_file: Path, data_dir: Path, *, yes: bool) -> None:
    """Carry out a plan in the data directory of a stopped broker.

    There is no way back: copy the directory first. If it is interrupted, run it again; until then
    the broker does not start.
    """
    from moldau.server.recovery.apply import State, decode_plan
    from moldau.server.recovery.directories import carry_out, check

    plan = decode_plan(plan_file.read_bytes())
    planned, state = check(data_dir, plan)
    if state is State.DONE:
        say(f"nothing to do: {data_dir} belongs to cluster {plan.new_cluster_id} already")
        return
    _say_changes(plan, planned, data_dir)
    if state is State.BEGUN:
        say("this was begun before, and is completed now")
    else:
        confirm_by_word("Records of the lost brokers are given up, for good.", "recover", yes=yes)
    with progress_bar("replicas", len(planned.forced)) as on_replicas:
        carry_out(data_dir, plan, on_replicas)
    say(f"done: start broker {planned.broker_id} when all brokers of the plan are done")


def _say_changes(plan: "Plan", planned: "PlannedSurvivor", data_dir: Path) -> None:
    say(f"changes in {data_dir}, of broker {planned.broker_id}:")
    begun = sum(one.is_new for one in planned.forced)
    forced = len(planned.forced) - begun
    if forced:
        say(f"  {counted(forced, 'partition')} without a majority: it becomes the only voter")
    if begun:
        say(f"  {counted(begun, 'partition')} without any replica: begun as empty")
    if planned.broker_id == plan.metadata_broker:
        lost = ", ".join(str(number) for number in plan.lost)
        say(f"  metadata: it becomes the only voter, and brokers {lost} are drained as lost")
    say(f"  cluster id: {plan.new_cluster_id} instead of {plan.cluster_id}")
