"""Incremental config changes: set, delete, append and subtract."""

from collections.abc import Mapping, Sequence
from typing import assert_never

from moldau.metadata.commands import ConfigChange, ConfigOperation
from moldau.metadata.config_types import ConfigDefinition, ConfigType, shown, split_list
from moldau.model.errors import ErrorCode, RefusedError


def changed_configs(
    changes: Sequence[ConfigChange],
    current: Mapping[str, str],
    definitions: Mapping[str, ConfigDefinition],
) -> dict[str, str | None]:
    """The overrides after `changes`; the caller validates the values."""
    changed: dict[str, str | None] = dict(current)
    seen: set[str] = set()
    for change in changes:
        if change.name in seen:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST, f"Config {shown(change.name)} is named twice"
            )
        seen.add(change.name)
        match change.operation:
            case ConfigOperation.SET:
                changed[change.name] = change.value
            case ConfigOperation.DELETE:
                changed.pop(change.name, None)
            case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
                changed[change.name] = _changed_list(
                    change, current.get(change.name), definitions.get(change.name)
                )
            case _:
                assert_never(change.operation)
    return changed


def _changed_list(
    change: ConfigChange, current: str | None, definition: ConfigDefinition | None
) -> str:
    if definition is None or definition.type is not ConfigType.LIST:
        raise RefusedError(
            ErrorCode.INVALID_CONFIG,
            f"Config {shown(change.name)} is not a list: only set and delete are supported",
        )
    if change.value is None:
        raise definition.invalid("", f"{change.operation.name.lower()} needs a value")
    items = split_list(definition.default if current is None else current)
    changed = split_list(change.value)
    if change.operation is ConfigOperation.APPEND:
        return ",".join((*items, *(item for item in changed if item not in items)))
    return ",".join(item for item in items if item not in changed)
