"""Verifies that a table or a topic holds the records of other topics: `moldau pipeline run audit`.

See docs/spark/audit.md for what it finds, and docs/decisions/0026 for what it proves.
"""

from moldau.spark.pipelines.audit.copy_audit import audit_copy
from moldau.spark.pipelines.audit.cut import offset_count, take_cut
from moldau.spark.pipelines.audit.table_audit import audit_table
from moldau.spark.pipelines.rows import existing_table
from moldau.spark.pipelines.settings.audit import AuditSettings
from moldau.spark.pipelines.spec import Outcome, PipelineContext, Plan, Step

SETTINGS = AuditSettings


def plan(settings: AuditSettings) -> Plan:
    """Uses metadata of the brokers and the table; reads no rows."""
    settings.check()
    partitions = take_cut(settings).partitions
    what = f"read {len(partitions)} partitions, committed records only"
    steps = [Step(what=what, rows=offset_count(partitions))]
    if settings.table is not None:
        table, _ = existing_table(settings.table, settings.table_format, settings.storage)
        snapshot = table.snapshot()
        what = f"read {len(snapshot.files)} files of version {snapshot.version}"
        size = sum(file.bytes for file in snapshot.files)
        steps.append(Step(what=what, rows=snapshot.rows, bytes=size))
    else:
        steps.append(Step(what=f"read {settings.against_topic}, and match the records of both"))
    reads = (*settings.topics, settings.table, settings.against_topic)
    reads = (*reads, *settings.groups, settings.dead_letters)
    return Plan(reads=tuple(name for name in reads if name), writes=(), steps=tuple(steps))


def run(settings: AuditSettings, context: PipelineContext) -> Outcome:
    """Compares; the outcome is not ok if there is a difference."""
    settings.check()
    return (audit_copy if settings.table is None else audit_table)(settings, context)


__all__ = ["SETTINGS", "plan", "run"]
