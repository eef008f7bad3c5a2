"""`moldau pipeline run` and `plan`: for a kind, or for a file that declares a pipeline."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moldau.cli.click_groups import Command
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import Integer, document_output_option, plain_brokers_option
from moldau.cli.output import emit_document, emit_table, say
from moldau.cli.pipeline import audit
from moldau.cli.pipeline.kinds import KindGroup, Verb, parameters, require_spark_extra
from moldau.cli.pipeline.run_options import (
    conf_options,
    home_option,
    name_option,
    source_connection,
    spark_conf,
    trigger_option,
)

if TYPE_CHECKING:
    from moldau.spark.pipelines.spec import PipelineSettings, Plan
    from moldau.spark.pipelines.status import PipelineStatus

_RUN_OPTIONS = (
    document_output_option,
    click.option("--verbose", is_flag=True, help="Log more, with stack traces of errors."),
    click.option(
        "--force", is_flag=True, help="Run even if the brokers report that it is already running."
    ),
    click.option(
        "--metrics-port",
        type=Integer(0, 65535),
        metavar="PORT",
        help="Serve /metrics for Prometheus, and /healthz; 0: any free port.",
    ),
    click.option(
        "--metrics-host",
        default="127.0.0.1",
        show_default=True,
        metavar="HOST",
        help="Address of --metrics-port; 0.0.0.0: all interfaces.",
    ),
)
_PLAN_OPTIONS = (document_output_option,)


# -- run and plan


def run_settings(settings: "PipelineSettings", values: Mapping[str, Any]) -> int:
    """Run in the foreground, to the end or until it is stopped."""
    import msgspec

    from moldau.cli.pipeline.display import Display, logged
    from moldau.spark.pipelines.home import Home
    from moldau.spark.pipelines.runner import execute
    from moldau.spark.pipelines.spec import PipelineState

    Home(settings.home).check_idle()
    _check_spark(settings)
    # A continuous pipeline may start before its brokers: it waits for them.
    _check_settings(settings, waits_for_brokers=settings.continuous)
    try:
        with (
            _serving(values["metrics_port"], values["metrics_host"]) as publish,
            Display() as display,
            # Within the display, so that log lines appear above the bar.
            logged(is_verbose=values["verbose"]),
        ):

            def watcher(record: "PipelineStatus") -> None:
                publish(record)
                display(record)

            outcome = execute(settings, watcher=watcher, force=values["force"])
    except KeyboardInterrupt:
        say("interrupted within a batch; the next run repeats it")
        return ExitCode.INTERRUPTED
    if emit_document(msgspec.to_builtins(outcome), values["output"], name=""):
        pass
    elif settings.kind == "audit":
        audit.show(outcome)
    elif outcome.summary:
        click.echo(outcome.summary)
    else:
        say(f"{settings.name} finished: {outcome.rows:,} rows")
    if display.state is PipelineState.STOPPED and not settings.continuous:
        say(f"{settings.name} was stopped before its end; the same command continues it")
        return ExitCode.INTERRUPTED
    return ExitCode.OK if outcome.ok else ExitCode.FAILED


@contextmanager
def _serving(port: int | None, host: str) -> "Iterator[Callable[[PipelineStatus], None]]":
    """Serve metrics; yields the function that updates them."""
    if port is None:
        yield lambda record: None
        return
    from moldau.spark.metrics import MetricsServer

    with closing(MetricsServer(port, host)) as server:
        say(f"metrics: {server.url}")
        yield server.update


def plan_settings(settings: "PipelineSettings", values: Mapping[str, Any]) -> int:
    import msgspec

    from moldau.spark.pipelines.kinds import load
    from moldau.spark.pipelines.secrets import without_secrets

    kind = load(settings.kind)
    _check_settings(settings)
    made: Plan = kind.plan(settings)
    document = {"settings": without_secrets(settings), **msgspec.to_builtins(made)}
    if not emit_document(document, values["output"], name=""):
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
    """Fail before anything is created if Spark or Java is missing."""
    from moldau.spark.java import find_java
    from moldau.spark.sessions import check_installed

    check_installed()
    if not settings.master.startswith("sc://"):
        find_java()


def _check_settings(settings: "PipelineSettings", *, waits_for_brokers: bool = False) -> None:
    """Fail early: wrong settings, or brokers that do not respond."""
    from moldau.spark.pipelines.settings_file import check_conf
    from moldau.spark.sessions import check_master

    check_master(settings.master)
    check_conf(settings.conf)
    settings.check()
    if settings.needs_brokers and not waits_for_brokers:
        from moldau.client.kafka.connect import probe

        # Options of the source may ask for TLS.
        probe(settings.bootstrap, is_kafka=False)


# -- from a file


def file_command(verb: Verb) -> Command:
    def callback(path: str, **values: Any) -> int:
        with require_spark_extra():
            return verb.act(declared_settings(Path(path), values), values)

    file_option = click.option(
        "-f",
        "--file",
        "path",
        type=click.Path(exists=True, dir_okay=False),
        required=True,
        metavar="FILE",
        help="YAML or JSON with kind, name and settings.",
    )
    shared = (name_option, trigger_option, *conf_options, home_option, plain_brokers_option)
    return Command(
        f"{verb.name} -f",
        callback=callback,
        params=parameters((file_option, *shared, *verb.options)),
        examples=(f"moldau pipeline {verb.name} -f lake.yml",),
        help="A pipeline declared in a file.",
    )


def declared_settings(path: Path, values: dict[str, Any]) -> "PipelineSettings":
    """Settings of a file; `values` of the command line override them."""
    from moldau.spark.pipelines.home import check_name, home_at
    from moldau.spark.pipelines.settings_file import from_plain, read_file

    conf = spark_conf(values)
    found = {"bootstrap": values["brokers"], **read_file(path)}
    if values["trigger_seconds"] is not None:
        found |= {"continuous": True, "trigger_seconds": values["trigger_seconds"]}
    if _was_given("brokers"):
        found["bootstrap"] = values["brokers"]
    if values["name"] is not None:
        found["name"] = values["name"]
    if not isinstance(found.get("name"), str):
        raise CommandError(
            f"{path} does not name the pipeline",
            hint="add name: my-pipeline to the file · or use --name NAME",
            code=ExitCode.USAGE,
        )
    if "home" not in found or _was_given("home"):
        found["home"] = home_at(values["home"], check_name(found["name"]))
    settings = from_plain(found)
    options = {**source_connection(), **settings.options}
    settings = replace(settings, conf={**settings.conf, **conf}, options=options)
    if settings.continuous and not settings.can_run_continuously:
        raise CommandError(
            f"{settings.kind} cannot run continuously",
            hint="remove --trigger, and continuous in the file",
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
    help="Run a pipeline in the foreground, up to the offsets that are the latest at the start; "
    "with --trigger until it is stopped. Ctrl-C and SIGTERM stop it after the current batch, a "
    "second one at once. Logs of the pipeline, Spark and Java go to standard error.",
    examples=(
        "moldau pipeline run archive --topic clicks --to ./lake",
        "moldau pipeline run archive --topic clicks --to ./lake --trigger 5s",
        "moldau pipeline run --file lake.yml -o json | jq .rows",
    ),
)

_PLAN = Verb(name="plan", act=plan_settings, options=_PLAN_OPTIONS)
plan = KindGroup(
    verb=_PLAN,
    file_command=file_command(_PLAN),
    help="Show what a pipeline would read, write and do. Changes nothing.",
    examples=(
        "moldau pipeline plan archive --topic clicks --to ./lake",
        "moldau pipeline plan --file lake.yml -o json | jq .steps",
        "moldau pipeline plan --file lake.yml -b broker.example:9092",
    ),
)
