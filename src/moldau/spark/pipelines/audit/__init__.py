"""Proves that a table or a topic holds what other topics hold: `moldau pipeline run audit`.

See docs/spark/audit.md for what it finds, and docs/decisions/0026 for what it proves.
"""

from moldau.spark.pipelines.audit.copy_audit import audit_copy
from moldau.spark.pipelines.audit.cut import offset_count, take_cut
from moldau.spark.pipelines.audit.settings import AuditSettings
from moldau.spark.pipelines.audit.table_audit import audit_table
from moldau.spark.pipelines.rows import existing_table
from moldau.spark.pipelines.spec import Outcome, PipelineContext, PipelineSettings, Plan, Step

SETTINGS = AuditSettings


def plan(settings: PipelineSettings) -> Plan:
    """Looks at the brokers and the table; reads no row."""
    told = _checked(settings)
    places = take_cut(told).places
    what = f"read {len(places)} partitions, committed records only"
    steps = [Step(what=what, rows=offset_count(places))]
    if told.table is not None:
        table, _ = existing_table(told.table, told.table_format, told.storage)
        snapshot = table.snapshot()
        what = f"read {len(snapshot.files)} files of version {snapshot.version}"
        size = sum(file.bytes for file in snapshot.files)
        steps.append(Step(what=what, rows=snapshot.rows, bytes=size))
    else:
        steps.append(Step(what=f"read {told.against_topic}, and match the records of both"))
    reads = (*told.topics, told.table, told.against_topic, *told.groups, told.dead_letters)
    return Plan(reads=tuple(name for name in reads if name), writes=(), steps=tuple(steps))


def run(settings: PipelineSettings, context: PipelineContext) -> Outcome:
    """Ends by itself; its outcome is not ok if anything is wrong."""
    told = _checked(settings)
    return (audit_copy if told.table is None else audit_table)(told, context)


def _checked(settings: PipelineSettings) -> AuditSettings:
    if not isinstance(settings, AuditSettings):
        raise TypeError(f"an audit has AuditSettings, not {type(settings).__name__}")
    settings.check()
    return settings


__all__ = ["SETTINGS", "plan", "run"]
