"""Sends records of topics or of a lake's table once more, to a topic: by time, offset or key."""

from moldau.spark.pipelines.replay.settings import ReplaySettings
from moldau.spark.pipelines.spec import Context, Outcome, Plan, Settings

SETTINGS = ReplaySettings


def plan(settings: Settings) -> Plan:
    """What would be sent. Asks brokers and the table; changes nothing."""
    from moldau.spark.pipelines.replay.planning import plan_of

    return plan_of(_checked(settings))


def run(settings: Settings, context: Context) -> Outcome:
    """Send it, or what is left of it since the last time; ends when all is sent."""
    from moldau.spark.pipelines.replay.running import run_replay

    return run_replay(_checked(settings), context)


def _checked(settings: Settings) -> ReplaySettings:
    if not isinstance(settings, ReplaySettings):
        raise TypeError(f"settings of kind {settings.kind!r} are none of a replay")
    return settings


__all__ = ["SETTINGS", "plan", "run"]
