"""Spark's own Kafka connector, which comes as a package of the JVM: fetched where that works."""

from __future__ import annotations

from typing import Any

_TOKENS = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
_TRIED = (
    # The connector of this Spark, with all that it asks for.
    ("{installed}", ""),
    # The last one before, with its part for delegation tokens, which a plain connection never
    # uses, from an older one: it is not published everywhere.
    ("4.2.0", "4.2.0"),
    ("4.2.0", "4.0.0"),
)


def add_to(spark: Any) -> str:
    """The version of the connector that `spark` can read with from now on; empty if none."""
    for version, tokens in _TRIED:
        wanted = version.format(installed=spark.version)
        package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{wanted}"
        try:
            if tokens:
                spark.sql(f"ADD JAR 'ivy://{_TOKENS}:{tokens}?transitive=false'").collect()
                package += f"?exclude={_TOKENS}"
            spark.sql(f"ADD JAR 'ivy://{package}'").collect()
        except Exception:  # Ivy raises what it likes for a package that is not there.
            continue
        return wanted
    return ""
