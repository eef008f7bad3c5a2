"""Owns `moldau pipeline run`, `start` and `plan`: of a kind, or of a file that declares it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.lazy import Command
from moldau.cli.options import Duration, plain_brokers_option
from moldau.cli.output import emit_json, emit_table, say
from moldau.cli.pipeline_common import home_option, name_option
from moldau.cli.pipeline_kinds import Act, KindGroup, Verb, command_module

if TYPE_CHECKING:
    from moldau.spark.pipelines.home import Home
    from moldau.spark.pipelines.spec import Outcome, Plan, Settings

_FORCE = click.option(
    "--force", is_flag=True, help="Even if the brokers say that it runs somewhere else."
)
_RUN_OPTIONS = (
    click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON."),
    click.option("--verbose", is_flag=True, help="Show what Spark says, instead of logging it."),
    _FORCE,
)
_START_OPTIONS = (
    click.option("--foreground", is_flag=True, help="Stay, as containers want it."),
    click.option(
        "--timeout",
        "start_seconds_max",
        type=Duration(),
        default=180.0,
        metavar="TIME",
        help="How long it may take until it runs. [default: 180s]",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print what came of it as JSON."),
    _FORCE,
)
_PLAN_OPTIONS = (click.option("--json", "as_json", is_flag=True, help="Print it as JSON."),)


# -- what the verbs do


def run_settings(settings: "Settings", told: Mapping[str, Any]) -> int:
    """Run to the end, in the foreground."""
    home = _home(settings)
    home.check_idle()
    # A container may be there before its brokers are: that one waits for them.
    _check_spark(settings)
    _check_asked(settings, is_patient=bool(told.get("foreground")))
    try:
        outcome, was_stopped = _execute(
            settings, home, is_verbose=told.get("verbose", False), force=told.get("force", False)
        )
    except KeyboardInterrupt:
        say("ended in the middle of a batch, which is done again by the next run")
        return ExitCode.INTERRUPTED
    if told.get("as_json"):
        import msgspec

        emit_json(msgspec.to_builtins(outcome))
    elif (show := _shown_by(settings.kind)) is not None:
        show(outcome)
    elif outcome.summary:
        click.echo(outcome.summary)
    else:
        say(f"{settings.name} is done: {outcome.rows:,} rows")
    if was_stopped and not settings.continuous:
        say(f"{settings.name} was stopped before its end; the same command goes on from there")
        return ExitCode.INTERRUPTED
    return ExitCode.OK if outcome.ok else ExitCode.FAILED


def _shown_by(kind: str) -> "Callable[[Outcome], None] | None":
    """How a kind shows its outcome, if it has more to say than a line: `show` of its module."""
    from moldau.spark.pipelines.registry import find

    command = find(kind).command
    if command is None:
        return None
    show: Callable[[Outcome], None] | None = getattr(command_module(command), "show", None)
    return show


def start_settings(settings: "Settings", told: Mapping[str, Any]) -> int:
    """Start in the background, or stay."""
    if told.get("foreground"):
        return run_settings(settings, {"verbose": True, **told})
    from moldau.spark.pipelines.process import start
    from moldau.spark.pipelines.running import check_elsewhere
    from moldau.spark.pipelines.spec import State

    force = bool(told.get("force"))
    home = _home(settings)
    home.check_idle()
    _check_spark(settings)
    _check_asked(settings)
    if not force:
        check_elsewhere(settings)
    say(f"starting {settings.name}")
    record = start(settings, force=force, seconds_max=told.get("start_seconds_max", 180.0))
    is_well = record.outcome is None or record.outcome.ok
    if told.get("as_json"):
        from moldau.spark.pipelines.overview import described

        emit_json(described(record))
        return ExitCode.OK if is_well else ExitCode.FAILED
    if record.state is State.RUNNING:
        click.echo(f"{settings.name} is running, as process {record.pid}")
        say(f"moldau pipeline status {settings.name} · log: {home.log_file}")
        return ExitCode.OK
    click.echo(f"{settings.name} has {record.state}")
    if record.outcome is not None and record.outcome.summary:
        say(record.outcome.summary)
    return ExitCode.OK if is_well else ExitCode.FAILED


def plan_settings(settings: "Settings", told: Mapping[str, Any]) -> int:
    """Show what would run."""
    from moldau.spark.pipelines.declared import without_secrets
    from moldau.spark.pipelines.registry import extra_missing, load
    from moldau.spark.pipelines.running import begun_at

    kind = load(settings.kind)
    _check_asked(settings)
    try:
        made = kind.plan(begun_at(settings, _home(settings)))
    except ImportError as error:
        if (missing := extra_missing(error)) is None:
            raise
        raise missing from error
    if told.get("as_json"):
        import msgspec

        emit_json({"settings": without_secrets(settings), **msgspec.to_builtins(made)})
    else:
        show_plan(settings.name, made)
    return ExitCode.OK


def show_plan(name: str, made: "Plan") -> None:
    click.echo(f"{name}")
    for title, lines in (("reads", made.reads), ("writes", made.writes)):
        for line in lines or ("nothing",):
            click.echo(f"  {title:<7} {line}")
    if made.steps:
        click.echo()
        rows = [
            {"step": number, "what": step.what, "rows": step.rows, "bytes": step.bytes}
            for number, step in enumerate(made.steps, 1)
        ]
        emit_table(rows, indent="  ")
    for warning in made.warnings:
        say(f"warning: {warning}")


def _check_spark(settings: "Settings") -> None:
    """Without Spark, or Java, nothing is begun that would then be left half done."""
    from moldau.spark.java import find_java
    from moldau.spark.pipelines.registry import READY_MADE
    from moldau.spark.sessions import check_installed

    if settings.kind not in READY_MADE:
        return
    check_installed()
    if not settings.master.startswith("sc://"):
        find_java()


def _check_asked(settings: "Settings", *, is_patient: bool = False) -> None:
    """What can be told at once, before anything is made."""
    from moldau.spark.pipelines.registry import find
    from moldau.spark.sessions import check_master

    check_master(settings.master)
    command = find(settings.kind).command
    if is_patient or command is None:
        return
    if getattr(command_module(command), "NEEDS_BROKERS", False):
        from moldau.client.connect import probe

        probe(settings.bootstrap)


def _home(settings: "Settings") -> "Home":
    from moldau.spark.pipelines.home import Home

    return Home(Path(settings.home))


def _execute(
    settings: "Settings", home: "Home", *, is_verbose: bool, force: bool
) -> tuple[Any, bool]:
    from moldau.cli.pipeline_display import Display, quieted
    from moldau.model.errors import MoldauError
    from moldau.spark.pipelines.home import BusyError
    from moldau.spark.pipelines.running import execute
    from moldau.spark.pipelines.spec import State

    try:
        with (
            quieted(home, is_verbose=is_verbose) as stream,
            Display(stream, is_plain=is_verbose) as display,
        ):
            outcome = execute(settings, watcher=display, force=force)
    except MoldauError as error:
        if not isinstance(error, BusyError) and not is_verbose:
            say(f"log: {home.log_file}")
        raise
    record = home.read_state()
    return outcome, record is not None and record.state is State.STOPPED


# -- from a file


def file_command(
    verb: str, act: Act, options: Any, *, is_continuous: bool, summary: str
) -> Command:
    """The command for `-f FILE`."""

    def callback(path: str, name: str | None, brokers: str, home: str, **told: Any) -> int:
        settings = declared_settings(
            Path(path), name=name, brokers=brokers, home=home, is_continuous=is_continuous
        )
        return act(settings, told)

    decorated: Any = callback
    for option in (
        *reversed(options),
        plain_brokers_option,
        home_option,
        name_option,
        click.option(
            "-f",
            "--file",
            "path",
            type=click.Path(exists=True, dir_okay=False),
            required=True,
            metavar="FILE",
            help="YAML or JSON with kind, name and settings.",
        ),
    ):
        decorated = option(decorated)
    return click.command(
        f"{verb} -f", cls=Command, help=summary, examples=(f"moldau pipeline {verb} -f lake.yml",)
    )(decorated)


def declared_settings(
    path: Path, *, name: str | None, brokers: str, home: str, is_continuous: bool
) -> "Settings":
    """What a file declares; what the command line says where the file is silent."""
    from moldau.spark.pipelines.declared import from_plain, read_file
    from moldau.spark.pipelines.home import check_name

    found = read_file(path, {"bootstrap": brokers})
    found.setdefault("continuous", is_continuous and _can_go_on(found.get("kind")))
    if _was_given("brokers"):
        found["bootstrap"] = brokers
    if name is not None:
        found["name"] = name
    if not isinstance(found.get("name"), str):
        raise CommandError(
            f"{path} does not say what the pipeline is called",
            hint="name: my-pipeline, in the file · or --name NAME",
            code=ExitCode.USAGE,
        )
    if "home" not in found or _was_given("home"):
        found["home"] = str(Path(home).absolute() / check_name(found["name"]))
    return from_plain(found, lax=True)


def _can_go_on(kind: object) -> bool:
    """Whether a kind can go on until it is stopped; those that cannot say so in their module."""
    from moldau.spark.pipelines.registry import kinds

    known = kinds().get(kind) if isinstance(kind, str) else None
    if known is None or known.command is None:
        return True
    return bool(getattr(command_module(known.command), "CONTINUOUS", True))


def _was_given(parameter: str) -> bool:
    source = click.get_current_context().get_parameter_source(parameter)
    return source is click.core.ParameterSource.COMMANDLINE


# -- the commands

run = KindGroup(
    "run",
    verb=Verb(
        name="run",
        act=run_settings,
        options=_RUN_OPTIONS,
        file_command=file_command(
            "run",
            run_settings,
            _RUN_OPTIONS,
            is_continuous=False,
            summary="A pipeline that a file declares.",
        ),
    ),
    help="Run a pipeline in the foreground, until all that is there when it starts is done. "
    "Ctrl-C stops it after the batch at hand; a second one at once.",
    examples=(
        "moldau pipeline run archive --topic clicks --to ./lake",
        "moldau pipeline run --file lake.yml --json | jq .rows",
        "moldau pipeline run --file lake.yml -b broker.example:9092",
    ),
)

start = KindGroup(
    "start",
    verb=Verb(
        name="start",
        act=start_settings,
        options=_START_OPTIONS,
        is_continuous=True,
        file_command=file_command(
            "start",
            start_settings,
            _START_OPTIONS,
            is_continuous=True,
            summary="A pipeline that a file declares.",
        ),
    ),
    help="Start a pipeline that goes on until it is stopped, in a process of its own. Comes back "
    "once it runs, or with the reason why it does not.",
    examples=(
        "moldau pipeline start archive --topic clicks --to ./lake",
        "moldau pipeline start --file lake.yml --foreground",
        "moldau pipeline start --file lake.yml -b broker.example:9092",
    ),
)

plan = KindGroup(
    "plan",
    verb=Verb(
        name="plan",
        act=plan_settings,
        options=_PLAN_OPTIONS,
        file_command=file_command(
            "plan",
            plan_settings,
            _PLAN_OPTIONS,
            is_continuous=False,
            summary="A pipeline that a file declares.",
        ),
    ),
    help="Show what a pipeline would read, write and do. Changes nothing.",
    examples=(
        "moldau pipeline plan archive --topic clicks --to ./lake",
        "moldau pipeline plan --file lake.yml --json | jq .steps",
        "moldau pipeline plan --file lake.yml -b broker.example:9092",
    ),
)
