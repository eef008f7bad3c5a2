"""Owns what makes a record of one topic the same as one of another: expressions over its columns.

key                 the key, as it is               value       the value, as it is
header:NAME         the last header of that name    field:NAME  a field of a JSON value
sql:EXPRESSION      whatever Spark's SQL can make of the columns of a topic
"""

from typing import Final

from moldau.client.errors import InvalidArgumentError

DEFAULT: Final = ("key", "value")
_SQL: Final = "sql:"


def expression(term: str) -> str:
    """Spark's SQL for a term. Raises InvalidArgumentError."""
    if term in ("key", "value"):
        return term
    word, colon, rest = term.partition(":")
    if colon and rest:
        if word == "header":
            return f"get(reverse(filter(headers, h -> h.key = {_text(rest)})), 0).value"
        if word == "field":
            path = "".join(f"[{_path_part(part)}]" for part in rest.split("."))
            return f"get_json_object(CAST(value AS STRING), {_text('$' + path)})"
        if word == "sql":
            return rest
    raise InvalidArgumentError(
        f"{term!r} does not say what to match by",
        hint="--match is key, value, header:NAME, field:NAME or sql:EXPRESSION",
    )


def _path_part(name: str) -> str:
    if "'" in name:
        raise InvalidArgumentError(f"a field's name cannot have a quote here: {name!r}")
    return f"'{name}'"


def _text(text: str) -> str:
    """As a literal of SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
