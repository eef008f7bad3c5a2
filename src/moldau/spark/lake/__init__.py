"""Tables of a lake in Delta or Iceberg: `open_table`; see `moldau.spark.lake.table`."""

from moldau.spark.lake.open import open_table
from moldau.spark.lake.table import ConflictError, LakeError, LakeTable, Writing

__all__ = ["ConflictError", "LakeError", "LakeTable", "Writing", "open_table"]
