"""Replays records of topics or of a table to a topic, selected by time, offset or key."""

from moldau.spark.pipelines.replay.pipeline import plan, run
from moldau.spark.pipelines.settings.replay import ReplaySettings as SETTINGS  # noqa: N814

__all__ = ["SETTINGS", "plan", "run"]
