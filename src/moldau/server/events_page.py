"""Writes the table of events into docs/operate/logs.md, below its mark.

`python -m moldau.server.events_page` writes the file; a test checks that it is current."""

from pathlib import Path
from typing import Final

from moldau.model.log_events import EVENTS
from moldau.model.log_levels import COMPONENTS

PAGE: Final = Path("docs/operate/logs.md")
MARK: Final = "<!-- Generated from here on, by `make docs`. -->\n"


def render() -> str:
    """What stands below the mark."""
    lines = ["", "## Components", "", "| component | what it logs |", "|---|---|"]
    lines += [f"| `{name}` | {component.about} |" for name, component in COMPONENTS.items()]
    lines += ["", "## Events", ""]
    for section, events in EVENTS.items():
        links = ", ".join(f"[{event.name}](#{event.name})" for event in events)
        lines.append(f"- {section}: {links}")
    for section, events in EVENTS.items():
        lines += ["", f"## {section}"]
        for event in events:
            lines += ["", f"### {event.name}", "", f"Level {event.level}. {event.meaning}", ""]
            lines.append(f"**What to do:** {event.remedy}")
    return "\n".join(lines) + "\n"


def page(current: str) -> str:
    """The page with a new table. Raises ValueError without a mark."""
    head, mark, _ = current.partition(MARK)
    if not mark:
        raise ValueError(f"{PAGE} has lost its mark: {MARK}")
    return head + mark + render()


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
