"""Options of consume, tail and queue work: which messages to print, and how."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import click

from moldau.cli.messages.filter_terms import Both, Contains, Predicate
from moldau.cli.messages.filters import parse_filter
from moldau.cli.messages.formats import (
    NULL,
    PLACEHOLDERS,
    Formatter,
    json_formatter,
    template_formatter,
    text_formatter,
)
from moldau.cli.output import color_wanted


class MessageOutput(NamedTuple):
    """The formatter, and the filter (None: all messages)."""

    formatter: Formatter
    filter: Predicate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintOptions:
    output: str = "text"
    template: str | None = None
    print_key: bool = False
    print_headers: bool = False
    show_null: bool = False
    expression: str | None = None
    grep: str | None = None

    def make(self, *, topic: bool = False) -> MessageOutput:
        """Formatter and filter; raises CommandError for an invalid option.

        With `topic`, text lines begin with the topic.
        """
        marked = (self.grep or "").encode(errors="surrogateescape")
        return MessageOutput(self._formatter(topic, marked), self._filter(marked))

    def _formatter(self, topic: bool, marked: bytes) -> Formatter:
        null = NULL if self.show_null else b""
        if self.template is not None:
            return template_formatter(self.template, null)
        if self.output == "json":
            return json_formatter
        return text_formatter(
            key=self.print_key,
            headers=self.print_headers,
            topic=topic,
            null=null,
            color=color_wanted(),
            marked=marked,
        )

    def _filter(self, grep: bytes) -> Predicate | None:
        parts: list[Predicate] = [Contains(grep)] if self.grep is not None else []
        if self.expression is not None:
            parts.append(parse_filter(self.expression))
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else Both(tuple(parts))


_Function = Callable[..., Any]

_PLACEHOLDERS = ", ".join(f"%{name} {doc}" for name, doc in PLACEHOLDERS.items())

_FORMAT_OPTIONS = (
    click.option("-Z", "--show-null", is_flag=True, help="Print NULL for a missing key or value."),
    click.option("--print-headers", is_flag=True, help="Print the headers before the message."),
    click.option("--print-key", is_flag=True, help="Print the key before the value."),
    click.option(
        "-f",
        "--format",
        "template",
        metavar="TEMPLATE",
        help=f"Template: {_PLACEHOLDERS}; \\n, \\t, \\0, \\xNN.",
    ),
    click.option(
        "-o",
        "--output",
        type=click.Choice(("text", "json")),
        default="text",
        show_default=True,
        help="Output format: values, or one JSON object per line.",
    ),
)
_FILTER_OPTIONS = (
    click.option(
        "--filter",
        "expression",
        metavar="EXPR",
        help="Only matching messages, as: key=a and not .user.id>=42. "
        "Fields: key, value, topic, partition, offset, timestamp, header.NAME, .JSON.PATH; "
        "operators: = != < <= > >= ~ !~, and, or, not, ().",
    ),
    click.option(
        "--grep", metavar="TEXT", help="Only messages with this text in key, value or a header."
    ),
)


def printing_options(function: _Function) -> _Function:
    """Format and filter options, passed to the function as `printing`."""
    return _collected(function, (*_FILTER_OPTIONS, *_FORMAT_OPTIONS))


def format_options(function: _Function) -> _Function:
    """Format options alone, passed to the function as `printing`."""
    return _collected(function, _FORMAT_OPTIONS)


def _collected(
    function: _Function, options: tuple[Callable[[_Function], _Function], ...]
) -> _Function:
    @functools.wraps(function)
    def with_printing(*args: Any, **kwargs: Any) -> Any:
        names = PrintOptions.__dataclass_fields__.keys() & kwargs.keys()
        printing = PrintOptions(**{name: kwargs.pop(name) for name in names})
        return function(*args, printing=printing, **kwargs)

    collected: _Function = with_printing
    for option in options:
        collected = option(collected)
    return collected
