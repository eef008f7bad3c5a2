"""The kinds of pipelines.

Each kind has settings, `moldau.spark.pipelines.settings.<kind>`, which also declare its options of
the command line; and a package or module `moldau.spark.pipelines.<kind>` with

    SETTINGS: type[PipelineSettings]                        # the same
    def plan(settings) -> Plan                              # without Spark: brokers and tables only
    def run(settings, context: PipelineContext) -> Outcome  # to its end, or until it is stopped
"""

from types import ModuleType
from typing import Final

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.settings.aggregate import AggregateSettings
from moldau.spark.pipelines.settings.archive import ArchiveSettings
from moldau.spark.pipelines.settings.audit import AuditSettings
from moldau.spark.pipelines.settings.compact import CompactSettings
from moldau.spark.pipelines.settings.replay import ReplaySettings
from moldau.spark.pipelines.spec import PipelineSettings

KINDS: Final[dict[str, type[PipelineSettings]]] = {
    "archive": ArchiveSettings,
    "compact": CompactSettings,
    "replay": ReplaySettings,
    "aggregate": AggregateSettings,
    "audit": AuditSettings,
}


def settings_type(kind: object) -> type[PipelineSettings]:
    """Raises InvalidArgumentError for an unknown kind."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidArgumentError(
            f"unknown kind of pipeline {kind!r}", hint=f"kind must be one of {', '.join(KINDS)}"
        )
    return KINDS[kind]


def load(kind: str) -> ModuleType:
    """Imports what plans and runs a kind. Only on use: it needs Spark, and not what others need."""
    match settings_type(kind).kind:
        case "archive":
            from moldau.spark.pipelines import archive

            return archive
        case "compact":
            from moldau.spark.pipelines import compact

            return compact
        case "replay":
            from moldau.spark.pipelines import replay

            return replay
        case "aggregate":
            from moldau.spark.pipelines import aggregate

            return aggregate
        case "audit":
            from moldau.spark.pipelines import audit

            return audit
    raise RuntimeError(f"no module runs pipelines of the kind {kind}")
