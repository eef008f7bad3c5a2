"""The levels of the log as settings, in the form of Kafka's resource BROKER_LOGGER."""

from collections.abc import Sequence

from moldau.metadata.commands import ConfigChange, ConfigOperation
from moldau.metadata.config_types import ConfigSource, ConfigType, shown
from moldau.metadata.topic_configs import ConfigEntry, ConfigSynonym
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.log_levels import NAMES, LogLevel, ShownLevel, parse_level


def level_entry(level: ShownLevel) -> ConfigEntry:
    is_own = level.level != level.configured
    source = ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG if is_own else ConfigSource.DEFAULT_CONFIG
    return ConfigEntry(
        name=level.component,
        value=level.level,
        source=source,
        type=ConfigType.STRING,
        documentation=level.about,
        synonyms=(
            ConfigSynonym(
                name=level.component,
                value=level.configured,
                source=ConfigSource.STATIC_BROKER_CONFIG,
            ),
        ),
    )


def levels_to_set(changes: Sequence[ConfigChange]) -> dict[str, LogLevel | None]:
    """By component; None: as configured. Raises RefusedError, and then nothing is to be set."""
    found: dict[str, LogLevel | None] = {}
    for change in changes:
        if change.name not in NAMES:
            raise RefusedError(
                ErrorCode.INVALID_CONFIG,
                f"the log has no component {shown(change.name)}: components are {', '.join(NAMES)}",
            )
        if change.operation is ConfigOperation.DELETE:
            found[change.name] = None
        elif change.operation is ConfigOperation.SET:
            level = parse_level(change.value or "")
            if level is None:
                raise RefusedError(
                    ErrorCode.INVALID_CONFIG,
                    f"{shown(change.value or '')} is not a valid level of the log: "
                    f"levels are {', '.join(LogLevel)}",
                )
            found[change.name] = level
        else:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST, f"a level can be set or deleted: {shown(change.name)}"
            )
    return found
