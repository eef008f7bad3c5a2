"""Spark's own Kafka connector, which comes as a package of the JVM: whether it can be fetched."""

from __future__ import annotations

import subprocess
import sys

SECONDS_MAX = 300
_TRY = """
import sys
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.jars.packages", sys.argv[1])
    .getOrCreate()
)
spark.stop()
"""


def package() -> str:
    """What it is called for this version of Spark."""
    import pyspark

    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"


def is_there(name: str) -> bool:
    """Try it in a process of its own: a session that cannot find its packages does not start."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TRY, name],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
