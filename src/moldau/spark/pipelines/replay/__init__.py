"""Sends records of topics or of a lake's table once more, to a topic: by time, offset or key."""

from moldau.spark.pipelines.replay.pipeline import plan, run
from moldau.spark.pipelines.replay.selection import ReplaySettings as SETTINGS  # noqa: N814

__all__ = ["SETTINGS", "plan", "run"]
