"""Writes into files for deployment what stands in others: the version, the settings, the alerts.

make deploy-files

Charts and images are versioned as semantic versioning says, which helm requires: 0.2.0rc1 is
0.2.0-rc.1 there. Then renders the plain manifests from the chart, for which helm is needed; the
first line of each holds a checksum, by which anyone sees without helm that they belong together.
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from moldau.server.config.keys import ALIASES, KEYS, SECTIONS
from moldau.version import __version__

ROOT: Final = Path(__file__).resolve().parent.parent
_CHART: Final = ROOT / "deploy/helm/moldau"
_MANIFESTS: Final = ROOT / "deploy/kubernetes"
RENDERED: Final = {"moldau.yaml": "values.yaml", "moldau-try.yaml": "values-try.yaml"}
"""The plain manifests, with the values that they are rendered with."""

_PYTHON: Final = re.compile(r"(\d+\.\d+\.\d+)(?:\.?(dev|a|b|rc)(\d+))?")
_IMAGE: Final = re.compile(r"\bmoldau:\d+\.\d+\.\d+(?:-\w+(?:\.\d+)?)?")
_IN_CHART: Final = re.compile(r'^((?:appV|v)ersion: "?)[^"\n]*', re.MULTILINE)
_SETTINGS: Final = re.compile(r'^    "config": \{\n.*?^    \},\n', re.MULTILINE | re.DOTALL)
_WITH_IMAGE: Final = (
    "deploy/docker/compose.yaml",
    "deploy/docker/compose-node.yaml",
    "deploy/docker/Dockerfile",
    "docs/operate/containers.md",
)


def _config_schema() -> str:
    """`config` of the chart: the settings that a broker knows, and nothing else."""

    def some(names: Iterable[str], indent: str) -> str:
        return f",\n{indent}".join(f'"{name}": {{}}' for name in names)

    tops = some([key.name for key in KEYS.values() if not key.section] + list(ALIASES), " " * 8)
    sections = []
    for section in SECTIONS:
        fields = some([key.field for key in KEYS.values() if key.section == section], " " * 12)
        sections.append(
            f"""        "{section}": {{
          "type": "object",
          "additionalProperties": false,
          "properties": {{
            {fields}
          }}
        }}"""
        )
    inner = ",\n".join([f"        {tops}", *sections])
    return f"""    "config": {{
      "type": "object",
      "additionalProperties": false,
      "properties": {{
{inner}
      }}
    }},
"""


def semantic_version(version: str) -> str:
    """The version of a Python package as semantic versioning writes it. Raises ValueError."""
    found = _PYTHON.fullmatch(version)
    if found is None:
        raise ValueError(f"the version {version} is not X.Y.Z, X.Y.ZrcN or X.Y.Z.devN")
    number, kind, count = found.groups()
    return f"{number}-{kind}.{count}" if kind else number


def expected_files(version: str = __version__, root: Path = ROOT) -> dict[Path, str]:
    """What each file is to hold."""
    semantic = semantic_version(version)
    chart = root / "deploy/helm/moldau"
    about, schema = chart / "Chart.yaml", chart / "values.schema.json"
    found = {
        chart / "files/alerts.yml": (root / "deploy/prometheus/alerts.yml").read_text(),
        schema: _SETTINGS.sub(_config_schema(), schema.read_text()),
        about: _IN_CHART.sub(rf"\g<1>{semantic}", about.read_text()),
    }
    for name in _WITH_IMAGE:
        path = root / name
        found[path] = _IMAGE.sub(f"moldau:{semantic}", path.read_text())
    return found


def outdated_files() -> list[str]:
    """The files that do not hold what they are to hold."""
    found = [
        path
        for path, text in expected_files().items()
        if not path.exists() or path.read_text() != text
    ]
    found += [_MANIFESTS / name for name, values in RENDERED.items() if not is_sealed(name, values)]
    return [str(path.relative_to(ROOT)) for path in found]


def sealed(manifest: str, values: Path, chart: Path = _CHART) -> str:
    """A manifest below a line with the checksum of chart, values and the manifest itself."""
    total = hashlib.sha256(values.read_bytes())
    for path in sorted(chart.rglob("*")):
        # Editors and Python leave files there that are not of the chart.
        if path.is_file() and not path.name.startswith(".") and path.parent.name != "__pycache__":
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            total.update(f"{path.relative_to(chart).as_posix()} {digest}\n".encode())
    total.update(manifest.encode())
    return f"# Rendered by `make deploy-files`: {total.hexdigest()}\n{manifest}"


def is_sealed(name: str, values: str, chart: Path = _CHART, folder: Path = _MANIFESTS) -> bool:
    """Whether neither the manifest nor what it is rendered from was changed since."""
    text = (folder / name).read_text()
    return text == sealed(text.partition("\n")[2], folder / values, chart)


def _render(helm: str) -> None:
    """Raises CalledProcessError."""
    for name, values in RENDERED.items():
        words = ["--namespace", "moldau", "--kube-version", "1.30"]
        command = [helm, "template", "moldau", str(_CHART), *words]
        command += ["--values", str(_MANIFESTS / values)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=60)
        (_MANIFESTS / name).write_text(sealed(done.stdout.decode(), _MANIFESTS / values))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--helm", default="helm", help="the program (default: helm, in the path)")
    options = parser.parse_args()
    for path, text in expected_files().items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")
    helm = shutil.which(options.helm)
    if helm is None:
        print(
            f"error: deploy/kubernetes is not rendered: there is no {options.helm}; "
            "install it: make helm",
            file=sys.stderr,
        )
        return 1
    try:
        _render(helm)
    except subprocess.CalledProcessError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
