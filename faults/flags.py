"""Files by which a test tells a running broker what goes wrong from now on."""

from pathlib import Path


def put(flag: Path, text: str) -> None:
    """In one step: the broker may look at any time, and an empty file could mean another fault."""
    new = flag.with_name(f"{flag.name}.new")
    new.write_text(text)
    new.rename(flag)
