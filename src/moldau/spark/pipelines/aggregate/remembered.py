"""Owns what an aggregate must remember beside Spark's checkpoint, in its folder.

Where the first batch begins: Spark asks for it again when that batch is played again. The schema,
if it was inferred: another sample may say something else. And what the state was made with: other
SQL over old state would be a mixture of both.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.aggregate.settings import AggregateSettings
from moldau.spark.pipelines.home import CheckpointError

FILE: Final = "aggregate.json"
_KEPT: Final = {
    "sql": "--sql",
    "view": "--view",
    "event_time": "--event-time",
    "mode": "--mode",
    "decode": "--decode",
    "to_topic": "--to",
    "to_table": "--to-table",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    start: dict[str, Any]
    """Positions, as checkpoints have them."""
    schema: str | None
    """DDL, if it was inferred."""
    asked: dict[str, Any]


def asked_of(settings: AggregateSettings) -> dict[str, Any]:
    """What must stay the same for as long as there is a checkpoint."""
    return {name: getattr(settings, name) for name in _KEPT}


def recall(settings: AggregateSettings) -> Remembered | None:
    """None before the first start. Raises InvalidArgumentError if something else was asked."""
    text = settings.checkpoint.read(FILE)
    if text is None:
        return None
    try:
        found = Remembered(**json.loads(text))
    except (ValueError, TypeError) as error:
        where = f"{settings.checkpoint.location}/{FILE}"
        raise CheckpointError(f"{where} cannot be read: {error!r}") from None
    for name, value in asked_of(settings).items():
        if found.asked.get(name) != value:
            raise InvalidArgumentError(
                f"aggregate {settings.name} goes on with the state that it has, and that was made "
                f"with another {_KEPT[name]}: {found.asked.get(name)}",
                hint="use another --name, or begin again: "
                f"moldau pipeline reset {settings.name} --to earliest",
            )
    return found


def remember(settings: AggregateSettings, found: Remembered) -> None:
    """On the disk when it returns."""
    settings.checkpoint.write(FILE, json.dumps(asdict(found)).encode())
