"""SQL over a stream with windows and a watermark; late and bad rows go to side topics."""

from moldau.spark.pipelines.aggregate.pipeline import plan_aggregate as plan
from moldau.spark.pipelines.aggregate.pipeline import run_aggregate as run
from moldau.spark.pipelines.settings.aggregate import AggregateSettings

SETTINGS = AggregateSettings

__all__ = ["SETTINGS", "AggregateSettings", "plan", "run"]
