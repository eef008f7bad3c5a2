"""Makes few large files of many small ones in a lake's table; duplicates and old versions go."""

from moldau.spark.pipelines.compact.settings import CompactSettings
from moldau.spark.pipelines.spec import Context, Outcome, Plan, Settings

SETTINGS = CompactSettings


def plan(settings: Settings) -> Plan:
    """Which files would be merged. Looks at the table's list of files; changes nothing."""
    from moldau.spark.pipelines.compact.choosing import plan_of

    return plan_of(_checked(settings))


def run(settings: Settings, context: Context) -> Outcome:
    """Once, in one commit, or not at all."""
    from moldau.spark.pipelines.compact.running import run_compaction

    return run_compaction(_checked(settings), context)


def _checked(settings: Settings) -> CompactSettings:
    if not isinstance(settings, CompactSettings):
        raise TypeError(f"settings of kind {settings.kind!r} are none of a compaction")
    return settings


__all__ = ["SETTINGS", "plan", "run"]
