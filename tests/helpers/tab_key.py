"""The tab key: what bash would be offered for the last word of a command line."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from moldau.testing.waiting import wait_seconds_max, wait_until


def complete(words: Sequence[str], env: Mapping[str, str] | None = None) -> list[str]:
    """With these variables of ours alone."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MOLDAU_")}
    line = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-m", "moldau"],
        env={**clean, **(env or {}), **line, "_MOLDAU_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
        timeout=wait_seconds_max(),
    )
    assert done.stderr == ""
    return [row.partition(",")[2] for row in done.stdout.splitlines() if row]


def offered(words: Sequence[str], env: Mapping[str, str] | None = None) -> list[str]:
    """As `complete`, until there is something: the tab key waits for a broker for a second at most,
    in which a busy machine may not come to it."""
    return wait_until(lambda: complete(words, env), f"something is offered for {words}")
