"""`python -m faults`: plays the scenarios, prints the tables; exit code 1 when one failed."""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from faults import report
from faults.catalogue import SCENARIOS, Scenario
from faults.namespaces import NamespaceError, cannot_use_namespaces
from faults.nodes import NodeError
from faults.report import Played
from faults.run import Run, ScenarioError
from faults.storage.volumes import VolumeError, cannot_mount


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument(
        "--only",
        action="append",
        choices=names,
        metavar="NAME",
        help=f"play only this one (may be repeated): {', '.join(names)}",
    )
    parser.add_argument("--quick", action="store_true", help="few repetitions: about 3 minutes")
    parser.add_argument("--brokers", type=int, choices=[1, 3], default=1)
    parser.add_argument("--dir", type=Path, help="where data goes (default: a temporary folder)")
    parser.add_argument("--keep", action="store_true", help="keep data, logs and histories")
    parser.add_argument(
        "--write-docs", action="store_true", help="write the measured part of docs/reliability.md"
    )
    return parser.parse_args()


def play(scenario: Scenario, home: Path, *, quick: bool) -> Played:
    """One scenario, from start to verdict."""
    missing = scenario.missing(home.parent)
    if missing or scenario.play is None:
        return Played(scenario=scenario, missing=missing)
    started = time.monotonic()
    run = Run(home, quick=quick, load=scenario.load)
    try:
        with run:
            scenario.play(run)
    except (ScenarioError, NodeError, VolumeError, NamespaceError) as error:
        run.problem(str(error))
    run.result.seconds = time.monotonic() - started
    return Played(scenario=scenario, result=run.result)


def main() -> int:
    options = arguments()
    # Mounts, namespaces and processes are taken down on the way out.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if options.brokers != 1:
        print("error: a cluster of three is not there yet; use --brokers 1", file=sys.stderr)
        return 2
    chosen = [s for s in SCENARIOS if not options.only or s.name in options.only]
    directory = Path(tempfile.mkdtemp(prefix="moldau-faults-", dir=options.dir))
    network = cannot_use_namespaces()
    disks = cannot_mount(directory)
    print(f"network: {f'proxies ({network})' if network else 'namespaces, and proxies for delays'}")
    print(f"disks:   {disks or 'ext4 images and tmpfs'}", flush=True)
    all_played = []
    try:
        for scenario in chosen:
            played = play(scenario, directory / scenario.name, quick=options.quick)
            all_played.append(played)
            print(report.line(played), flush=True)
            if not options.keep and (played.result is None or played.result.passed):
                shutil.rmtree(directory / scenario.name, ignore_errors=True)
    finally:
        if not options.keep and all(p.result is None or p.result.passed for p in all_played):
            shutil.rmtree(directory, ignore_errors=True)
        else:
            print(f"logs and histories are in {directory}")
    print(report.markdown(all_played))
    if options.write_docs:
        command = " ".join(["python -m faults", *sys.argv[1:]])
        report.write_docs(all_played, command)
    return 0 if all(p.result is None or p.result.passed for p in all_played) else 1


if __name__ == "__main__":
    sys.exit(main())
