"""SQL over a stream with windows and a watermark; each row is in a result, or in a side topic."""

from moldau.spark.pipelines.aggregate.planning import plan_aggregate as plan
from moldau.spark.pipelines.aggregate.running import run_aggregate as run
from moldau.spark.pipelines.aggregate.settings import AggregateSettings

SETTINGS = AggregateSettings

__all__ = ["SETTINGS", "AggregateSettings", "plan", "run"]
