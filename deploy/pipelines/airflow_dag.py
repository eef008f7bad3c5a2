"""Every hour: archives new records of a topic to a table, compacts the table, and audits it.

Airflow's workers need `moldau[spark]` and Java. If MOLDAU_PIPELINES_HOME is not on a disk that all
workers share, pin the tasks to one worker by a queue: the checkpoint is there.
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
    # A second concurrent run of the same pipeline would be rejected.
    max_active_runs=1,
    # A retry continues an interrupted run: nothing is lost or duplicated.
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1)},
):
    archive = BashOperator(
        task_id="archive",
        # exec: the pipeline itself gets Airflow's SIGTERM, and ends after the current batch.
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
        # Exit code 1 if a record is missing or duplicated.
        bash_command=f"exec moldau pipeline run audit --topic clicks --table {TABLE}",
        env={"MOLDAU_BROKERS": "broker.example:9092", "MOLDAU_PIPELINES_HOME": "/srv/pipelines"},
        append_env=True,
    )
    archive >> compact >> audit
