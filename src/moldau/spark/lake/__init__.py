"""Lake tables in Delta or Iceberg: `open_table`; see `moldau.spark.lake.table`."""

from moldau.spark.lake.model import ConflictError, LakeError, Writing
from moldau.spark.lake.open import open_table
from moldau.spark.lake.table import LakeTable

__all__ = ["ConflictError", "LakeError", "LakeTable", "Writing", "open_table"]
