"""Findings: an input that a target must survive and does not, as files."""

import hashlib
import json
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Final

from msgspec import Struct

FOLDER: Final = Path("build/fuzz/findings")


class Finding(Struct, frozen=True, kw_only=True):
    """One input, or a row of them, and what happened."""

    target: str
    kind: str
    """The type of the error, `hang` or `memory`."""
    place: str
    """File and line of the product."""
    text: str
    trace: str
    inputs: tuple[bytes, ...]
    """The last one shows it; the ones before it made the state."""

    @property
    def identity(self) -> str:
        """The same for the same mistake."""
        return f"{self.target} {self.kind} {self.place}"

    @property
    def file_name(self) -> str:
        digest = hashlib.sha256(self.identity.encode()).hexdigest()[:12]
        return f"{self.target}-{self.kind.lower()}-{digest}.json"

    @property
    def command(self) -> str:
        """Repeats it."""
        return f"python -m fuzz --repeat {FOLDER / self.file_name}"


def write_finding(finding: Finding, folder: Path = FOLDER) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / finding.file_name
    fields = {
        "target": finding.target,
        "kind": finding.kind,
        "place": finding.place,
        "text": finding.text,
        "repeat": finding.command,
        "inputs": [b64encode(data).decode() for data in finding.inputs],
        "trace": finding.trace.splitlines(),
    }
    path.write_text(json.dumps(fields, indent=1) + "\n")
    return path


def read_finding(path: Path) -> Finding:
    """Raises ValueError if the file is not a finding."""
    try:
        fields = json.loads(path.read_text())
        return Finding(
            target=fields["target"],
            kind=fields["kind"],
            place=fields["place"],
            text=fields["text"],
            trace="\n".join(fields["trace"]),
            inputs=tuple(b64decode(data) for data in fields["inputs"]),
        )
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a finding: {error}") from error
