"""Check what the product is made of: known vulnerabilities, a list of all parts, licences.

python -m supply_chain                  of an install without extras
python -m supply_chain --extra spark    with what Spark needs

Writes build/audit/requirements.txt and build/audit/sbom.cdx.json (CycloneDX). A step that needs the
network is skipped where there is none, and says so. Exit status: 1 if something was found.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import Distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name

from supply_chain.closure import PROJECT, MissingPackageError, closure, pinned
from supply_chain.licences import READ, problems

FOLDER: Final = Path("build/audit")
_REQUIREMENTS: Final = FOLDER / "requirements.txt"
_SBOM: Final = FOLDER / "sbom.cdx.json"
_SECONDS_MAX: Final = 300
_OFFLINE: Final = ("ConnectionError", "Connection refused", "resolve", "timed out", "ServiceError")
_ADVICE: Final = "install the extra `audit`"

Packages = dict[str, Distribution]


class SkippedError(Exception):
    """A step that cannot be done here, and why."""


class FoundError(Exception):
    """What a step found, one per line."""


def _run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", *command],
        capture_output=True,
        text=True,
        timeout=_SECONDS_MAX,
        check=False,
    )


def check_vulnerabilities(packages: Packages) -> str:
    """By pip-audit, which asks the database of PyPI."""
    if find_spec("pip_audit") is None:
        raise SkippedError(f"pip-audit is not installed; {_ADVICE}")
    try:
        done = _run(
            "pip_audit",
            *("--requirement", str(_REQUIREMENTS)),
            *("--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off"),
        )
    except subprocess.TimeoutExpired:
        raise SkippedError("the database of vulnerabilities did not respond in time") from None
    try:
        reported = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        if any(word in done.stderr for word in _OFFLINE):
            raise SkippedError(
                f"the database of vulnerabilities cannot be reached ({last[0][:200]})"
            ) from None
        raise FoundError(f"pip-audit failed: {last[0][:300]}") from None
    found = [
        f"{package['name']} {package['version']}: {each['id']}, fixed in "
        f"{', '.join(each.get('fix_versions', ())) or 'no version yet'}"
        for package in reported
        for each in package.get("vulns", ())
    ]
    if found:
        raise FoundError("\n".join(found))
    checked = sum("skip_reason" not in package for package in reported)
    if checked < len(packages):
        raise SkippedError(f"only {checked} of {len(packages)} packages are known to the database")
    return f"none of {checked} packages has a known one"


def write_sbom(packages: Packages) -> str:
    """By cyclonedx-py, of this environment; what is not part of the product is left out."""
    if find_spec("cyclonedx_py") is None:
        raise SkippedError(f"cyclonedx-bom is not installed; {_ADVICE}")
    done = _run(
        "cyclonedx_py",
        *("environment", "--pyproject", str(PROJECT), "--output-reproducible"),
        *("--output-format", "JSON", "--output-file", str(_SBOM)),
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        raise FoundError(f"cyclonedx-py failed: {last[0][:300]}")
    document = json.loads(_SBOM.read_text())
    kept = [
        part
        for part in document["components"]
        if packages.keys() & {canonicalize_name(part["name"])}
    ]
    references = {part["bom-ref"] for part in kept} | {document["metadata"]["component"]["bom-ref"]}
    document["components"] = kept
    document["dependencies"] = [
        {**each, "dependsOn": sorted(references.intersection(each.get("dependsOn", ())))}
        for each in document.get("dependencies", ())
        if each["ref"] in references
    ]
    _SBOM.write_text(json.dumps(document, indent=1) + "\n")
    missing = packages.keys() - {canonicalize_name(part["name"]) for part in kept}
    if missing:
        raise FoundError(f"not in {_SBOM}: {', '.join(sorted(missing))}")
    return f"{len(kept)} packages in {_SBOM}"


def check_licences(packages: Packages) -> str:
    refused = problems(packages)
    if refused:
        raise FoundError(
            "\n".join(f"{name}: {licence}" for name, licence in refused.items())
            + "\nRead them, and add them to supply_chain/licences.py, or replace the packages"
        )
    read = sorted(packages.keys() & READ.keys())
    exceptions = f"; read one by one: {', '.join(read)}" if read else ""
    return f"all {len(packages)} packages have one that is allowed{exceptions}"


_STEPS: Final[dict[str, Callable[[Packages], str]]] = {
    "vulnerabilities": check_vulnerabilities,
    "parts": write_sbom,
    "licences": check_licences,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m supply_chain",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--extra", action="append", default=[], help="with this extra, too")
    options = parser.parse_args(arguments)
    try:
        packages = closure(options.extra)
    except (MissingPackageError, KeyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    _REQUIREMENTS.write_text(pinned(packages))
    status = 0
    for name, step in _STEPS.items():
        try:
            said = step(packages)
        except SkippedError as skipped:
            said = f"skipped: {skipped}"
        except FoundError as found:
            status = 1
            said = f"FOUND\n{found}".replace("\n", "\n    ")
        print(f"{name}: {said}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
