"""Proves that a table or a topic holds what other topics hold: `moldau pipeline run audit`.

See docs/spark/audit.md for what it finds, and docs/decisions/0026 for what it proves.
"""

from moldau.spark.pipelines.audit.running import plan, run
from moldau.spark.pipelines.audit.settings import AuditSettings as SETTINGS  # noqa: N814

__all__ = ["SETTINGS", "plan", "run"]
