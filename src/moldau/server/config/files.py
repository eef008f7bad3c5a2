"""Reads configuration files: YAML, TOML, JSON, INI, .env and .properties, chosen by extension.

Every format becomes a flat list of dotted keys with their line numbers. The loader checks whether
keys exist and what their values mean.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from moldau.model.errors import ConfigError

FILE_BYTES_MAX = 1024 * 1024


class FileEntry(NamedTuple):
    """One value in a file; `line` is 0 where it is unknown."""

    key: str
    value: object
    line: int


def read_config_file(path: str) -> list[FileEntry]:
    """Every value in the file. Raises ConfigError if it cannot be read or parsed."""
    reader = _reader(path)
    try:
        with open(path, "rb") as stream:
            data = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot read the configuration file {path} ({error.strerror})"
        ) from error
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"the configuration file {path} is larger than {FILE_BYTES_MAX} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"the configuration file {path} is not UTF-8 ({error.reason})") from error
    return reader(path, text)


def _reader(path: str) -> Callable[[str, str], list[FileEntry]]:
    name = os.path.basename(path).lower()
    extension = ".env" if name == ".env" else os.path.splitext(name)[1]
    reader = _READERS.get(extension)
    if reader is None:
        error = ConfigError(f"unknown extension of the configuration file {path}")
        error.hint = f"supported extensions: {', '.join(_READERS)}"
        raise error
    return reader


def _flatten(prefix: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flatten(f"{prefix}.{key}" if prefix else str(key), inner)
    else:
        yield prefix, value


def _top(path: str, value: object) -> dict[object, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must contain keys and values at the top level")
    return value


def _find_line(text: str, key: str) -> int:
    """The line of a key, where the parser does not report it; 0 if ambiguous."""
    name = re.escape(key.rpartition(".")[2])
    pattern = re.compile(rf"[\s{{,.]*['\"]?(?:[\w.]+\.)?{name}['\"]?\s*[:=]")
    lines = [number for number, line in enumerate(text.splitlines(), 1) if pattern.match(line)]
    return lines[0] if len(lines) == 1 else 0


_YAML_MAP = "tag:yaml.org,2002:map"
_YAML_VALUES_MAX = 100_000


def _read_yaml(path: str, text: str) -> list[FileEntry]:
    import yaml  # only a file of this format pays for its parser, here and below

    def entries(prefix: str, node: yaml.MappingNode) -> Iterator[FileEntry]:
        seen: set[str] = set()
        for key_node, value_node in node.value:
            key = str(loader.construct_object(key_node))
            line = int(key_node.start_mark.line) + 1
            if key in seen:
                raise ConfigError(f"{path}:{line}: duplicate key {key}")
            seen.add(key)
            name = f"{prefix}.{key}" if prefix else key
            if isinstance(value_node, yaml.MappingNode) and value_node.tag == _YAML_MAP:
                yield from entries(name, value_node)
            else:
                yield FileEntry(name, loader.construct_object(value_node, deep=True), line)

    try:
        # It looks for control characters in the whole text at once.
        loader = yaml.SafeLoader(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML ({error})") from error
    try:
        root = loader.get_single_node()
        if root is None:
            return []
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(f"{path} must contain keys and values at the top level")
        _check_aliases(path, root)
        return list(entries("", root))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f":{mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{path}{line} is not valid YAML ({error.problem})") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid YAML ({error})") from error
    finally:
        loader.dispose()


def _check_aliases(path: str, root: object) -> None:
    """A few lines of aliases of aliases stand for more values than any memory holds."""
    sizes: dict[int, int] = {}

    def size(node: object) -> int:
        found = sizes.get(id(node))
        if found is None:
            parts = node if isinstance(node, tuple) else getattr(node, "value", ())
            found = 1 if isinstance(parts, str) else 1 + sum(map(size, parts))
            sizes[id(node)] = found
        return found

    if size(root) > _YAML_VALUES_MAX:
        raise ConfigError(f"{path} is not valid YAML (it has more than {_YAML_VALUES_MAX} values)")


def _read_toml(path: str, text: str) -> list[FileEntry]:
    import tomllib

    try:
        tree = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML ({error})") from error
    return [FileEntry(key, value, _find_line(text, key)) for key, value in _flatten("", tree)]


def _read_json(path: str, text: str) -> list[FileEntry]:
    try:
        tree = _top(path, json.loads(text))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno} is not valid JSON ({error.msg})") from error
    except RecursionError as error:
        raise ConfigError(f"{path} is not valid JSON (nested too deeply)") from error
    return [FileEntry(key, value, _find_line(text, key)) for key, value in _flatten("", tree)]


_INI_TOP = "moldau"


def _read_ini(path: str, text: str) -> list[FileEntry]:
    """Sections are those of the schema; top-level keys come first, or in [moldau]."""
    import configparser

    parser = configparser.RawConfigParser(default_section="\0", inline_comment_prefixes=("#", ";"))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    has_top = re.search(rf"^\[{_INI_TOP}\]", text, re.MULTILINE) is not None
    added = 0 if has_top else 1
    try:
        parser.read_string(text if has_top else f"[{_INI_TOP}]\n{text}", source=path)
    except configparser.Error as error:
        line = getattr(error, "lineno", None) or (getattr(error, "errors", None) or [(0,)])[0][0]
        place = f"{path}:{line - added}" if line else path
        what = str(error).splitlines()[0].replace(f"[{_INI_TOP}]\\n", "")
        raise ConfigError(f"{place} is not a valid INI file ({what})") from error
    found: list[FileEntry] = []
    for section in parser.sections():
        for option, value in parser.items(section):
            key = option if section == _INI_TOP else f"{section}.{option}"
            found.append(FileEntry(key, value, _find_ini_line(text, section, option)))
    return found


def _find_ini_line(text: str, section: str, option: str) -> int:
    current = _INI_TOP
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("[") and stripped.endswith("]"):
            current = stripped[1:-1]
        elif current == section and re.match(rf"{re.escape(option)}\s*[:=]", stripped):
            return number
    return 0


def _lines(path: str, text: str, what: str, separators: str) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        match = re.match(rf"([^\s{separators}]+)\s*[{separators}]\s*(.*)", stripped)
        if match is None:
            raise ConfigError(f"{path}:{number} is not a valid line of {what}: {stripped[:60]!r}")
        yield number, match[1], match[2]


def _read_properties(path: str, text: str) -> list[FileEntry]:
    found = _lines(path, text, "a .properties file", "=:")
    return [FileEntry(key, value, number) for number, key, value in found]


def _read_env(path: str, text: str) -> list[FileEntry]:
    """Keys stay variable names (MOLDAU_LOG__FLUSH); the loader handles them as environment."""
    found: list[FileEntry] = []
    for number, key, value in _lines(
        path, re.sub(r"(?m)^[ \t]*export[ \t]+", "", text), ".env", "="
    ):
        quoted = re.fullmatch(r"(['\"])(.*)\1(?:\s+#.*)?", value)
        bare = quoted[2] if quoted else re.sub(r"\s+#.*", "", value)
        found.append(FileEntry(key, bare, number))
    return found


_READERS: dict[str, Callable[[str, str], list[FileEntry]]] = {
    ".yaml": _read_yaml,
    ".yml": _read_yaml,
    ".toml": _read_toml,
    ".json": _read_json,
    ".ini": _read_ini,
    ".env": _read_env,
    ".properties": _read_properties,
}
