"""Every hour: what is new in a topic goes to a table, files are merged, and the audit looks.

The pipelines run in processes of their own, so that each has a Spark of its own; their settings are
those of files (`-f`), or of the command line as here.
"""

import json
import os
import subprocess

from dagster import Definitions, Failure, In, Nothing, OpExecutionContext, ScheduleDefinition, op
from dagster import job as dagster_job

TABLE = ("s3://lake/clicks", "--format", "delta")
ARCHIVE = (
    "moldau",
    "pipeline",
    "run",
    "archive",
    "--topic",
    "clicks",
    "--to",
    *TABLE,
    "-o",
    "json",
)
COMPACT = ("moldau", "pipeline", "run", "compact", "--table", *TABLE, "-o", "json")
AUDIT = ("moldau", "pipeline", "run", "audit", "--topic", "clicks", "--table", *TABLE, "-o", "json")
ENVIRONMENT = {
    "MOLDAU_BROKERS": "broker.example:9092",
    "MOLDAU_PIPELINES_HOME": "/srv/pipelines",
}


def run(context: OpExecutionContext, command: tuple[str, ...]) -> None:
    """What the pipeline logs is the log of the step; what it prints is its outcome."""
    done = subprocess.run(
        command, env={**os.environ, **ENVIRONMENT}, stdout=subprocess.PIPE, text=True, check=False
    )
    outcome = json.loads(done.stdout) if done.stdout else {}
    context.add_output_metadata({"rows": outcome.get("rows", 0)})
    if done.returncode:
        raise Failure(outcome.get("summary") or f"exit code {done.returncode}")


@op
def archive(context: OpExecutionContext) -> None:
    run(context, ARCHIVE)


@op(ins={"after": In(Nothing)})
def compact(context: OpExecutionContext) -> None:
    run(context, COMPACT)


@op(ins={"after": In(Nothing)})
def audit(context: OpExecutionContext) -> None:
    run(context, AUDIT)


@dagster_job
def clicks_to_lake() -> None:
    audit(after=compact(after=archive()))


definitions = Definitions(
    jobs=[clicks_to_lake],
    schedules=[ScheduleDefinition(job=clicks_to_lake, cron_schedule="5 * * * *")],
)
