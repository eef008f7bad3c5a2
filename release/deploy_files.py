"""Writes into files for deployment what stands in others: the version, and the chart's alerts.

make deploy-files

Charts and images are versioned as semantic versioning says, which helm requires: 0.2.0rc1 is
0.2.0-rc1 there. Then renders the plain manifests from the chart, for which helm is needed.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from moldau.version import __version__

ROOT: Final = Path(__file__).resolve().parent.parent
_CHART: Final = ROOT / "deploy/helm/moldau"
_RENDERED: Final = {"moldau.yaml": "values.yaml", "moldau-try.yaml": "values-try.yaml"}

_PYTHON: Final = re.compile(r"(\d+\.\d+\.\d+)(?:\.?(dev|a|b|rc)(\d+))?")
_IMAGE: Final = re.compile(r"\bmoldau:\d+\.\d+\.\d+(?:-\w+)?")
_IN_CHART: Final = re.compile(r'^((?:appV|v)ersion: "?)[^"\n]*', re.MULTILINE)
_WITH_IMAGE: Final = (
    "deploy/docker/compose.yaml",
    "deploy/docker/Dockerfile",
    "docs/operate/containers.md",
)


def semantic_version(version: str) -> str:
    """The version of a Python package as semantic versioning writes it. Raises ValueError."""
    found = _PYTHON.fullmatch(version)
    if found is None:
        raise ValueError(f"the version {version} is not X.Y.Z, X.Y.ZrcN or X.Y.Z.devN")
    number, kind, count = found.groups()
    return f"{number}-{kind}{count}" if kind else number


def expected_files(version: str = __version__) -> dict[Path, str]:
    """What each file is to hold."""
    semantic = semantic_version(version)
    chart = _CHART / "Chart.yaml"
    found = {
        _CHART / "files/alerts.yml": (ROOT / "deploy/prometheus/alerts.yml").read_text(),
        chart: _IN_CHART.sub(rf"\g<1>{semantic}", chart.read_text()),
    }
    for name in _WITH_IMAGE:
        path = ROOT / name
        found[path] = _IMAGE.sub(f"moldau:{semantic}", path.read_text())
    return found


def outdated_files() -> list[str]:
    """The files that do not hold what they are to hold."""
    return [
        str(path.relative_to(ROOT))
        for path, text in expected_files().items()
        if not path.exists() or path.read_text() != text
    ]


def _render(helm: str) -> None:
    """As docs/operate/kubernetes.md says. Raises CalledProcessError."""
    folder = ROOT / "deploy/kubernetes"
    for name, values in _RENDERED.items():
        words = ["--namespace", "moldau", "--kube-version", "1.30"]
        command = [helm, "template", "moldau", str(_CHART), *words]
        command += ["--values", str(folder / values)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=60)
        (folder / name).write_bytes(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--helm", default="helm", help="the program (default: helm, in the path)")
    options = parser.parse_args()
    expected = expected_files()
    for name in outdated_files():
        (ROOT / name).write_text(expected[ROOT / name])
        print(f"wrote {name}")
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
