"""Makes Spark know `format("moldau")`: it looks for modules of this kind of name by itself."""

from moldau.spark.datasource import MoldauDataSource as DefaultSource

__all__ = ["DefaultSource"]
