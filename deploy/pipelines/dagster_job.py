"""Every hour: archives new records of a topic to a table, compacts the table, and audits it.

The pipelines run in separate processes, each with its own Spark; settings are in files (`-f`) or
given on the command line, as here.
"""

import json
import os
import subprocess

from dagster import Definitions, Failure, In, Nothing, OpExecutionContext, ScheduleDefinition, op
from dagster import job as dagster_job

TABLE = ("s3://lake/clicks", "--format", "delta")
JSON = ("-o", "json")
ARCHIVE = ("moldau", "pipeline", "run", "archive", "--topic", "clicks", "--to", *TABLE, *JSON)
COMPACT = ("moldau", "pipeline", "run", "compact", "--table", *TABLE, *JSON)
AUDIT = ("moldau", "pipeline", "run", "audit", "--topic", "clicks", "--table", *TABLE, *JSON)
ENVIRONMENT = {
    "MOLDAU_BROKERS": "broker.example:9092",
    "MOLDAU_PIPELINES_HOME": "/srv/pipelines",
}


def run(context: OpExecutionContext, command: tuple[str, ...]) -> None:
    """The pipeline's log becomes the log of the step; its output is the outcome as JSON."""
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
