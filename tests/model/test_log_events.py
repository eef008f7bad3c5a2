"""Every line that an operator should act on names an event, and every event is logged."""

import ast
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from moldau.model import log_events
from moldau.model.log_events import EVENTS, Event
from moldau.server.events_page import PAGE, page
from moldau.server.logs import RESERVED_FIELDS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/moldau"
SERVER_SIDE = (
    *("api", "control", "coordination", "data", "edge", "groups", "leases", "log", "metadata"),
    *("net", "queues", "raft", "replica", "security", "server", "supervisor/node"),
    "transactions",
)
LEVELS = {"warning": 0, "error": 1, "exception": 1, "critical": 2, "info": -1}
ALL = {name: event for name, event in vars(log_events).items() if isinstance(event, Event)}
CHOSEN_BY_CALLER = {
    # Of connections that end: only an internal error has a level above info.
    ("net/connection.py", "_event(level)"),
    # Two events behind one limit of lines.
    ("net/listener.py", "extra"),
}


class LogCall(NamedTuple):
    file: str
    line: int
    method: str
    extra: ast.expr | None


def calls() -> Iterator[LogCall]:
    for path in chain.from_iterable((SOURCE / each).rglob("*.py") for each in SERVER_SIDE):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "log"
                and node.func.attr in {*LEVELS, "log"}
            ):
                extra = next((one.value for one in node.keywords if one.arg == "extra"), None)
                name = str(path.relative_to(SOURCE))
                yield LogCall(name, node.lineno, node.func.attr, extra)


def event_of(extra: ast.expr | None) -> str | None:
    """`events.NAME(…)` names an event."""
    if (
        isinstance(extra, ast.Call)
        and isinstance(extra.func, ast.Attribute)
        and isinstance(extra.func.value, ast.Name)
        and extra.func.value.id in {"events", "log_events"}
    ):
        return extra.func.attr
    return None


def test_every_warning_and_error_names_an_event_of_at_least_its_level():
    found = list(calls())
    assert len(found) > 100, "the calls are no longer found"
    wrong = []
    for call in found:
        name = event_of(call.extra)
        if name is None:
            is_chosen = call.extra and (call.file, ast.unparse(call.extra)) in CHOSEN_BY_CALLER
            if call.method != "info" and not is_chosen:
                wrong.append(f"{call.file}:{call.line} names no event")
        elif call.method != "log" and LEVELS[ALL[name].level] != LEVELS[call.method]:
            wrong.append(f"{call.file}:{call.line} logs {name} as {call.method}")
    assert wrong == []


def test_every_event_is_logged_somewhere():
    text = "".join(
        path.read_text() for each in SERVER_SIDE for path in (SOURCE / each).rglob("*.py")
    )
    assert [name for name in ALL if f"events.{name}(" not in text] == []


def test_fields_do_not_replace_those_of_every_line():
    taken = RESERVED_FIELDS | {"event"}
    for call in calls():
        if event_of(call.extra) is not None and isinstance(call.extra, ast.Call):
            given = {keyword.arg for keyword in call.extra.keywords}
            assert not given & taken, f"{call.file}:{call.line}"


def test_names_are_unique_and_say_what_happened_and_what_to_do():
    listed = [event for section in EVENTS.values() for event in section]
    assert sorted(event.name for event in listed) == sorted(event.name for event in ALL.values())
    assert len({event.name for event in listed}) == len(listed)
    for constant, event in ALL.items():
        assert event.name == constant.lower().replace("_", "-")
        assert event.meaning.endswith(".")
        assert event.remedy.endswith((".", "`"))


def test_the_page_is_current():
    current = (ROOT / PAGE).read_text()
    assert current == page(current), "run: python -m moldau.server.events_page"
