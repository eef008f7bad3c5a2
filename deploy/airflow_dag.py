"""Every hour: what is new in a topic goes to a table, files are merged, and the audit looks.

Airflow's workers need `moldau[spark]` and Java. Where MOLDAU_PIPELINES_HOME is not on a disk that
all workers share, pin the tasks to one of them by a queue: the checkpoint is there.
"""

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

TABLE = "s3://lake/clicks --format delta"

with DAG(
    "clicks_to_lake",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    # The name of a pipeline runs once at a time; a second run would be refused.
    max_active_runs=1,
    # A run that was cut short is gone on with: nothing is lost, nothing doubled.
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1)},
):
    archive = BashOperator(
        task_id="archive",
        # exec: the pipeline itself gets Airflow's SIGTERM, and ends after the batch at hand.
        bash_command=f"exec moldau pipeline run archive --topic clicks --to {TABLE}",
        env={"MOLDAU_BROKERS": "broker.example:9092", "MOLDAU_PIPELINES_HOME": "/srv/pipelines"},
        append_env=True,
    )
    compact = BashOperator(
        task_id="compact",
        bash_command=f"exec moldau pipeline run compact --table {TABLE}",
        env={"MOLDAU_PIPELINES_HOME": "/srv/pipelines"},
        append_env=True,
    )
    audit = BashOperator(
        task_id="audit",
        # Exit code 1 if a record is missing or doubled.
        bash_command=f"exec moldau pipeline run audit --topic clicks --table {TABLE}",
        env={"MOLDAU_BROKERS": "broker.example:9092", "MOLDAU_PIPELINES_HOME": "/srv/pipelines"},
        append_env=True,
    )
    archive >> compact >> audit
