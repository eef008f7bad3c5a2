"""Owns `moldau pipeline run` and `plan`: of a kind, or of a file that declares a pipeline."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moldau.cli.click_groups import Command
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import plain_brokers_option
from moldau.cli.output import emit_json, emit_table, say
from moldau.cli.pipeline.kinds import KindGroup, Verb, is_continuous, module_of, require_spark_extra
from moldau.cli.pipeline.run_options import (
    conf_options,
    home_option,
    name_option,
    spark_conf,
    trigger_option,
)

if TYPE_CHECKING:
    from moldau.spark.pipelines.home import Home
    from moldau.spark.pipelines.spec import PipelineSettings, Plan
    from moldau.spark.pipelines.status import Record

_RUN_OPTIONS = (
    click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON."),
    click.option("--verbose", is_flag=True, help="Log more, with the traces of errors."),
    click.option(
        "--force", is_flag=True, help="Even if the brokers say that it runs somewhere else."
    ),
    click.option(
        "--metrics-port",
        type=click.IntRange(0, 65535),
        metavar="PORT",
        help="Serve /metrics for Prometheus, and /healthz; 0 is any free port.",
    ),
    click.option(
        "--metrics-host",
        default="127.0.0.1",
        show_default=True,
        metavar="HOST",
        help="The address for it; 0.0.0.0 is all.",
    ),
)
_PLAN_OPTIONS = (click.option("--json", "as_json", is_flag=True, help="Print it as JSON."),)


# -- what the verbs do


def run_settings(settings: "PipelineSettings", told: Mapping[str, Any]) -> int:
    """Run in the foreground: to the end, or until somebody wants it to stop."""
    from moldau.cli.pipeline.display import Display, logged
    from moldau.spark.pipelines.runner import execute
    from moldau.spark.pipelines.spec import PipelineState

    _home(settings).check_idle()
    _check_spark(settings)
    # A service may be there before its brokers are: that one waits for them.
    _check_asked(settings, is_patient=settings.continuous)
    try:
        with (
            _serving(told["metrics_port"], told["metrics_host"]) as tell,
            Display() as display,
            # Within the display: on a terminal, what is logged stands above its bar.
            logged(is_verbose=told["verbose"]),
        ):

            def watcher(record: "Record") -> None:
                tell(record)
                display(record)

            outcome = execute(settings, watcher=watcher, force=told["force"])
    except KeyboardInterrupt:
        say("ended in the middle of a batch, which is done again by the next run")
        return ExitCode.INTERRUPTED
    if told["as_json"]:
        import msgspec

        emit_json(msgspec.to_builtins(outcome))
    elif (show := getattr(module_of(settings.kind), "show", None)) is not None:
        # A kind that has more to say than a line.
        show(outcome)
    elif outcome.summary:
        click.echo(outcome.summary)
    else:
        say(f"{settings.name} is done: {outcome.rows:,} rows")
    if display.state is PipelineState.STOPPED and not settings.continuous:
        say(f"{settings.name} was stopped before its end; the same command goes on from there")
        return ExitCode.INTERRUPTED
    return ExitCode.OK if outcome.ok else ExitCode.FAILED


@contextmanager
def _serving(port: int | None, host: str) -> "Iterator[Callable[[Record], None]]":
    """Yields what is to be told how the pipeline is, for whoever reads its metrics."""
    if port is None:
        yield lambda record: None
        return
    from moldau.spark.metrics import MetricsServer

    with closing(MetricsServer(port, host)) as server:
        say(f"metrics: {server.url}")
        yield server.tell


def plan_settings(settings: "PipelineSettings", told: Mapping[str, Any]) -> int:
    """Show what would run."""
    from moldau.spark.pipelines.home import begun_at
    from moldau.spark.pipelines.settings_file import without_secrets
    from moldau.spark.pipelines.spec import load

    _check_asked(settings)
    made: Plan = load(settings.kind).plan(begun_at(settings, _home(settings)))
    if told["as_json"]:
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


def _check_spark(settings: "PipelineSettings") -> None:
    """Without Spark, or Java, nothing is begun that would then be left half done."""
    from moldau.spark.java import find_java
    from moldau.spark.sessions import check_installed

    check_installed()
    if not settings.master.startswith("sc://"):
        find_java()


def _check_asked(settings: "PipelineSettings", *, is_patient: bool = False) -> None:
    """What can be told at once, before anything is made."""
    from moldau.spark.pipelines.settings_file import check_conf
    from moldau.spark.sessions import check_master

    check_master(settings.master)
    check_conf(settings.conf)
    if (check := getattr(settings, "check", None)) is not None:
        check()
    if not is_patient and getattr(module_of(settings.kind), "NEEDS_BROKERS", False):
        from moldau.client.kafka.connect import probe

        probe(settings.bootstrap)


def _home(settings: "PipelineSettings") -> "Home":
    from moldau.spark.pipelines.home import Home

    return Home(settings.home)


# -- from a file


def file_command(verb: Verb) -> Command:
    """The command for `-f FILE`."""

    def callback(
        path: str,
        name: str | None,
        trigger_seconds: float | None,
        brokers: str,
        home: str,
        **told: Any,
    ) -> int:
        with require_spark_extra():
            settings = declared_settings(
                Path(path),
                name=name,
                trigger_seconds=trigger_seconds,
                conf=spark_conf(told),
                brokers=brokers,
                home=home,
            )
            return verb.act(settings, told)

    decorated: Any = callback
    for option in (
        *reversed(verb.options),
        plain_brokers_option,
        home_option,
        conf_options,
        trigger_option,
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
        f"{verb.name} -f",
        cls=Command,
        help="A pipeline that a file declares.",
        examples=(f"moldau pipeline {verb.name} -f lake.yml",),
    )(decorated)


def declared_settings(
    path: Path,
    *,
    name: str | None,
    trigger_seconds: float | None,
    conf: Mapping[str, str],
    brokers: str,
    home: str,
) -> "PipelineSettings":
    """What a file declares; what the command line says goes before it."""
    from moldau.spark.pipelines.home import check_name, home_at
    from moldau.spark.pipelines.settings_file import from_plain, read_file

    found = {"bootstrap": brokers, **read_file(path)}
    if trigger_seconds is not None:
        found |= {"continuous": True, "trigger_seconds": trigger_seconds}
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
        found["home"] = home_at(home, check_name(found["name"]))
    settings = from_plain(found)
    settings = replace(settings, conf={**settings.conf, **conf})
    if settings.continuous and not is_continuous(module_of(settings.kind)):
        raise CommandError(
            f"{settings.kind} always ends by itself",
            hint="leave out --trigger, and continuous in the file",
            code=ExitCode.USAGE,
        )
    return settings


def _was_given(parameter: str) -> bool:
    source = click.get_current_context().get_parameter_source(parameter)
    return source is click.core.ParameterSource.COMMANDLINE


# -- the commands

_RUN = Verb(name="run", act=run_settings, options=_RUN_OPTIONS)
run = KindGroup(
    verb=_RUN,
    file_command=file_command(_RUN),
    help="Run a pipeline in the foreground, until all that is there when it starts is done; with "
    "--trigger until it is stopped. Ctrl-C and SIGTERM stop it after the batch at hand; a second "
    "one at once. What it, Spark and Java log goes to standard error.",
    examples=(
        "moldau pipeline run archive --topic clicks --to ./lake",
        "moldau pipeline run archive --topic clicks --to ./lake --trigger 5s",
        "moldau pipeline run --file lake.yml --json | jq .rows",
    ),
)

_PLAN = Verb(name="plan", act=plan_settings, options=_PLAN_OPTIONS)
plan = KindGroup(
    verb=_PLAN,
    file_command=file_command(_PLAN),
    help="Show what a pipeline would read, write and do. Changes nothing.",
    examples=(
        "moldau pipeline plan archive --topic clicks --to ./lake",
        "moldau pipeline plan --file lake.yml --json | jq .steps",
        "moldau pipeline plan --file lake.yml -b broker.example:9092",
    ),
)
