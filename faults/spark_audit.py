"""The second verdict about the rounds of `faults.spark`: Moldau's own audit, topic by topic.

    python -m faults.spark_audit --bootstrap A --pair IN:OUT --pair IN:OUT

Each record of the first topic must be in the second once, known by the partition and offset that
the query wrote down as its value. One line of JSON for each pair: whether it is so, and the report.
"""

import argparse
import json
import sys
import tempfile
from typing import Any, Final

from faults.spark_query import session
from moldau.spark.pipelines import audit
from moldau.spark.pipelines.spec import Progress

ORIGIN: Final = "sql:concat(partition, ':', offset)"
WRITTEN: Final = "sql:CAST(value AS STRING)"


class Alone:
    """The context of a pipeline that nobody watches."""

    stopping = False

    def __init__(self, spark: Any) -> None:
        self.spark = spark

    def report(self, progress: Progress) -> None:
        """Reports nothing."""

    def dead_letters(self, count: int) -> None:
        """Nobody counts."""

    def watch(self, query: Any) -> None:
        query.awaitTermination()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m faults.spark_audit", description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--pair", action="append", default=[], help="TOPIC:COPY")
    options = parser.parse_args()
    spark = session("local[2]")
    is_well = True
    with tempfile.TemporaryDirectory(prefix="moldau-audit-") as home:
        for pair in options.pair:
            source, _, target = pair.partition(":")
            settings = audit.SETTINGS(
                name=f"audit-{target}",
                bootstrap=options.bootstrap,
                home=home,
                topics=(source,),
                against_topic=target,
                match=(ORIGIN,),
                match_against=(WRITTEN,),
            )
            outcome = audit.run(settings, Alone(spark))
            is_well = is_well and outcome.ok
            reported = {"pair": pair, "ok": outcome.ok, "summary": outcome.summary}
            print(json.dumps(reported | {"rows": outcome.rows}), flush=True)
    spark.stop()
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
