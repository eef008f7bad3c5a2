"""Archives topics to a lake: Parquet, Delta or Iceberg tables, each record exactly once."""

from moldau.spark.pipelines.archive.pipeline import plan_archive as plan
from moldau.spark.pipelines.archive.pipeline import run_archive as run
from moldau.spark.pipelines.settings.archive import ArchiveSettings

SETTINGS = ArchiveSettings

__all__ = ["SETTINGS", "ArchiveSettings", "plan", "run"]
