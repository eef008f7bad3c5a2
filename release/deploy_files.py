"""Writes what the files for deployment have from elsewhere: the alerts in the chart.

make deploy-files

Then renders the plain manifests from the chart, for which helm is needed.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
_CHART: Final = ROOT / "deploy/helm/moldau"
_RENDERED: Final = {"moldau.yaml": "values.yaml", "moldau-try.yaml": "values-try.yaml"}


def expected_files() -> dict[Path, str]:
    """What each file is to hold."""
    return {_CHART / "files/alerts.yml": (ROOT / "deploy/prometheus/alerts.yml").read_text()}


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
