"""SQL over a stream with windows and a watermark; each row is in a result, or in a side topic."""

from moldau.spark.pipelines.aggregate.pipeline import AggregateSettings
from moldau.spark.pipelines.aggregate.pipeline import plan_aggregate as plan
from moldau.spark.pipelines.aggregate.pipeline import run_aggregate as run

SETTINGS = AggregateSettings

__all__ = ["SETTINGS", "AggregateSettings", "plan", "run"]
