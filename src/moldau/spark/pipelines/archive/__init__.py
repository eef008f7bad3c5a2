"""Keeps topics in a lake: Parquet, Delta or Iceberg tables, each record exactly once."""

from moldau.spark.pipelines.archive.settings import ArchiveSettings
from moldau.spark.pipelines.spec import Context, Outcome, Plan, Settings

SETTINGS = ArchiveSettings


def plan(settings: Settings) -> Plan:
    """What would be archived. Asks brokers and the table; changes nothing."""
    from moldau.spark.pipelines.archive.planning import plan_of

    return plan_of(_checked(settings))


def run(settings: Settings, context: Context) -> Outcome:
    """Archive what is there, or until told to stop."""
    from moldau.spark.pipelines.archive.running import run_archive

    return run_archive(_checked(settings), context)


def _checked(settings: Settings) -> ArchiveSettings:
    if not isinstance(settings, ArchiveSettings):
        raise TypeError(f"settings of kind {settings.kind!r} are none of an archive")
    settings.check()
    return settings


__all__ = ["SETTINGS", "plan", "run"]
