"""What the OpenAPI document says about one operation, and the schemas of its parameters."""

from typing import Any, Final

from msgspec import Struct

from moldau.model.topology import ErrorReply

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}


def number(least: int, most: int, **more: Any) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most, **more}


class Operation(Struct, frozen=True):
    """One method of one path. `answers`: by status; a string is a media type without schema."""

    name: str
    summary: str
    answers: dict[int, type | str]
    query: dict[str, Schema] | None = None
    """None: unknown parameters are ignored."""
    body: type | None = None
    refusals: tuple[int, ...] = ()
    problem: type = ErrorReply
