"""Tables of a lake in Delta or Iceberg: `open_table`; see `moldau.spark.lake.table`."""

from moldau.spark.lake.opening import open_table
from moldau.spark.lake.table import (
    ConflictError,
    DataFile,
    LakeError,
    LakeTable,
    Layout,
    Snapshot,
    TableFormat,
    Writing,
)

__all__ = [
    "ConflictError",
    "DataFile",
    "LakeError",
    "LakeTable",
    "Layout",
    "Snapshot",
    "TableFormat",
    "Writing",
    "open_table",
]
