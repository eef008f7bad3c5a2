"""Owns settings of pipelines as plain values: to and from JSON and files, and without secrets.

A declared pipeline is a mapping with `kind`, `name` and the settings of that kind:

    kind: archive
    name: clicks-to-lake
    topics: [clicks]
    to: s3://lake/clicks
    options: {maxOffsetsPerTrigger: "100000"}

`${NAME}` in a text is replaced by that variable of the environment, so that secrets need not stand
in the file.
"""

import dataclasses
import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from moldau.client.errors import InvalidArgumentError
from moldau.model.errors import MoldauError
from moldau.spark.pipelines import registry
from moldau.spark.pipelines.spec import Settings

KIND: Final = "kind"
MASK: Final = "******"

_SECRET_WORD: Final = re.compile(r"password|passwd|secret|token|credential|jaas", re.IGNORECASE)
_SECRET_OPTION: Final = re.compile(_SECRET_WORD.pattern + r"|key|auth", re.IGNORECASE)
"""Among options a key is something that opens; among settings it is mostly that of a record."""
_ASSIGNED: Final = re.compile(rf"((?:{_SECRET_WORD.pattern})[\w.-]*[=:])\S+", re.IGNORECASE)
"""Among many words of one option, such as those for Java."""
_URL_PASSWORD: Final = re.compile(r"(\w://[^/@:\s]*):[^/@\s]+@")
_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")
_CONF_LINE: Final = re.compile(r"([^\s=:]+)(?:\s*[=:]\s*|\s+)(\S.*)")


def to_plain(settings: Settings) -> dict[str, Any]:
    """With secrets: for the process that runs it, never to be shown."""
    found: dict[str, Any] = msgspec.to_builtins(settings)
    return {KIND: settings.kind, **found}


def without_secrets(settings: Settings) -> dict[str, Any]:
    """For everyone's eyes."""
    return {name: _masked(name, value) for name, value in to_plain(settings).items()}


def from_plain(document: Mapping[str, Any], *, lax: bool = False) -> Settings:
    """Settings of the kind that is named. `lax`: of a file, where a number may be a text.

    Raises InvalidArgumentError for an unknown kind or setting, and for a value that does not fit.
    """
    kind = document.get(KIND)
    if not isinstance(kind, str):
        raise InvalidArgumentError(
            "a pipeline must say what it is: kind is missing",
            hint=f"kind: {' | '.join(registry.kinds())}",
        )
    settings_type = registry.load(kind).settings
    given = {name: value for name, value in document.items() if name != KIND}
    _check_names(kind, settings_type, given)
    try:
        return msgspec.convert(_wrapped(settings_type, given), settings_type, strict=not lax)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, MoldauError):
            raise error.__cause__ from None
        raise InvalidArgumentError(f"these are no settings of {kind}: {_readable(error)}") from None


def read_file(path: Path, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """What a file declares, over `defaults`; to be handed to `from_plain(…, lax=True)`."""
    try:
        found = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(
            f"{path} is neither YAML nor JSON: {' '.join(str(error).split())}"
        ) from error
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise InvalidArgumentError(
            f"{path} declares no pipeline", hint="it must begin as in: kind: archive"
        )
    return {**defaults, **{name: _expanded(value, path) for name, value in found.items()}}


def read_conf(path: Path) -> dict[str, str]:
    """Settings of Spark from a file such as spark-defaults.conf: `key value` or `key=value`."""
    found: dict[str, str] = {}
    try:
        lines = path.read_text().splitlines()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path} is no text: {error}") from error
    for number, line in enumerate(map(str.strip, lines), 1):
        if line and not line.startswith("#"):
            match = _CONF_LINE.fullmatch(line)
            if match is None:
                # Not the line itself: it may be a secret.
                raise InvalidArgumentError(
                    f"line {number} of {path} is no setting of Spark",
                    hint="write: spark.executor.memory 4g · or: spark.executor.memory=4g",
                )
            found[match[1]] = match[2]
    return found


def check_conf(conf: Mapping[str, str]) -> None:
    """Refuse what Spark would pass over without a word, or what has an option of its own."""
    for name in conf:
        if not name.startswith("spark."):
            raise InvalidArgumentError(
                f"{name!r} is no setting of Spark: they begin with spark.",
                hint="options of the source are given by -o KEY=VALUE",
            )
        if name in ("spark.master", "spark.remote"):
            raise InvalidArgumentError(f"{name} is not set by --conf", hint="use --master URL")


def _check_names(kind: str, settings_type: type[Settings], given: Mapping[str, Any]) -> None:
    known = [field.name for field in dataclasses.fields(settings_type)]
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean {close[0]}? " if close else ""
            raise InvalidArgumentError(
                f"{kind} has no setting {name!r}", hint=f"{meant}known are {', '.join(known)}"
            )
    for field in dataclasses.fields(settings_type):
        is_needed = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        if is_needed and field.name not in given:
            raise InvalidArgumentError(f"{kind} needs the setting {field.name!r}")


def _wrapped(settings_type: type[Settings], given: Mapping[str, Any]) -> dict[str, Any]:
    """One text where several may stand is a list of one."""
    several = {
        field.name
        for field in dataclasses.fields(settings_type)
        if str(field.type).startswith("tuple[str")
    }
    return {
        name: [value] if name in several and isinstance(value, str) else value
        for name, value in given.items()
    }


def _readable(error: msgspec.ValidationError) -> str:
    text, _, place = str(error).partition(" - at `$.")
    return f"{place.rstrip('`')}: {text}" if place else text


def _expanded(value: Any, path: Path) -> Any:
    if isinstance(value, str):

        def replaced(match: re.Match[str]) -> str:
            found = os.environ.get(match[1])
            if found is None:
                raise InvalidArgumentError(
                    f"{path} wants the variable {match[1]}, which is not set",
                    hint=f"export {match[1]}=…",
                )
            return found

        return _VARIABLE.sub(replaced, value)
    if isinstance(value, dict):
        # Options are texts; in YAML they look like numbers and flags, too.
        return {str(key): _text(_expanded(item, path)) for key, item in value.items()}
    if isinstance(value, list):
        return [_expanded(item, path) for item in value]
    return value


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _unassigned(value: Any) -> Any:
    return _ASSIGNED.sub(rf"\1{MASK}", value) if isinstance(value, str) else value


def _masked(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: MASK if _SECRET_OPTION.search(key) else _masked("", _unassigned(item))
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_masked("", item) for item in value]
    if not isinstance(value, str):
        return value
    return MASK if value and _SECRET_WORD.search(name) else _URL_PASSWORD.sub(rf"\1:{MASK}@", value)
