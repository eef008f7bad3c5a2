"""Owns an audit as a pipeline: what it would read, and the run from the cut to the report."""

from typing import TYPE_CHECKING, Final

from moldau.spark.pipelines.audit.cut import take_cut
from moldau.spark.pipelines.audit.settings import AuditSettings, Through
from moldau.spark.pipelines.spec import Context, Outcome, Plan, Settings, Step

if TYPE_CHECKING:
    from moldau.spark.pipelines.audit.report import Report

ATTEMPTS_MAX: Final = 3
"""Of a table that is compacted while it is read."""


def plan(settings: Settings) -> Plan:
    """Looks at the broker and the table; reads no row."""
    told = _checked(settings)
    cut = take_cut(told)
    offsets = sum(planned.size for planned in cut.ranges())
    steps = [Step(what=f"read {len(cut.places)} partitions, committed records only", rows=offsets)]
    warnings = []
    if told.table is not None:
        from moldau.spark.pipelines.audit.tables import open_audited

        snapshot = open_audited(told).snapshot()
        size = sum(file.bytes for file in snapshot.files)
        what = f"read {len(snapshot.files)} files of version {snapshot.version}"
        steps.append(Step(what=what, rows=snapshot.rows, bytes=size))
        steps.append(Step(what="join both by topic, partition and offset"))
        if told.through == Through.LAKE and not told.groups:
            warnings.append("without --group, nothing behind the table's last offset is missed")
    else:
        steps.append(Step(what=f"read {told.against_topic}, and match the records of both"))
    reads = [*told.topics, told.table or told.against_topic or "", *told.groups]
    if told.dead_letters is not None:
        reads.append(told.dead_letters)
    return Plan(reads=tuple(reads), writes=(), steps=tuple(steps), warnings=tuple(warnings))


def run(settings: Settings, context: Context) -> Outcome:
    """Ends by itself; its outcome is not ok if anything is wrong."""
    told = _checked(settings)
    report = _report(told, context)
    return Outcome(
        ok=report.ok,
        summary=report.summary(),
        rows=report.source_rows + report.target_rows,
        details=report.document(),
    )


def _report(settings: AuditSettings, context: Context) -> "Report":
    from moldau.spark.pipelines.audit.copies import CopyAudit
    from moldau.spark.pipelines.audit.tables import TableAudit

    if settings.against_topic is not None:
        return CopyAudit(settings, context).report()
    from pyspark.errors import PySparkException

    left = ATTEMPTS_MAX
    while True:
        audit = TableAudit(settings, context)
        left -= 1
        try:
            return audit.report()
        except PySparkException:
            # Files of a snapshot go away when a table is compacted: its rows are in others now.
            if not left or not audit.was_replaced():
                raise


def _checked(settings: Settings) -> AuditSettings:
    if not isinstance(settings, AuditSettings):
        raise TypeError(f"an audit has AuditSettings, not {type(settings).__name__}")
    settings.check()
    return settings
