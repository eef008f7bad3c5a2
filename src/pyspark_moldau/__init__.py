"""Registers `format("moldau")`: Spark loads data sources from modules named `pyspark_*`."""

from moldau.spark.datasource import MoldauDataSource as DefaultSource

__all__ = ["DefaultSource"]
