"""Masks secrets in pipeline settings before they are printed or published."""

import re
from typing import Any, Final

import msgspec

from moldau.spark.pipelines.spec import PipelineSettings

MASK: Final = "******"

_SECRET_WORDS: Final = "password|passwd|secret|token|credential|jaas"
_SECRET: Final = re.compile(rf"{_SECRET_WORDS}|key|auth", re.IGNORECASE)
"""Names of options with secret values."""
_ASSIGNED: Final = re.compile(rf"((?:{_SECRET_WORDS})[\w.-]*[=:])\S+", re.IGNORECASE)
"""An assignment inside a value, as in Java options."""
_IN_ADDRESS: Final = re.compile(r"(\w://[^/@:\s]*:)[^/@\s]+(?=@)")


def without_secrets(settings: PipelineSettings) -> dict[str, Any]:
    """The settings as plain values, with secrets masked."""
    plain: dict[str, Any] = msgspec.to_builtins(settings)
    return {"kind": settings.kind, **{name: masked(value) for name, value in plain.items()}}


def masked(value: Any) -> Any:
    """Masks passwords in addresses, and values of options with secret names."""
    if isinstance(value, str):
        return _IN_ADDRESS.sub(rf"\1{MASK}", value)
    if isinstance(value, list | tuple):
        return [masked(each) for each in value]
    if isinstance(value, dict):
        return {
            name: MASK
            if _SECRET.search(name)
            else masked(_ASSIGNED.sub(rf"\1{MASK}", each) if isinstance(each, str) else each)
            for name, each in value.items()
        }
    return value
