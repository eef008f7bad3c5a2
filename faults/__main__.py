"""`python -m faults`: plays the scenarios, prints the tables; exit code 1 when one failed.

With PYTHONPATH=build/compiled, which `make compile` makes, brokers have a compiled hot path.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from faults import report
from faults.catalogue import BY_BROKERS, SECURED, Scenario
from faults.namespaces import NamespaceError, cannot_use_namespaces
from faults.nodes import NodeError
from faults.report import Played
from faults.run import Run, ScenarioError
from faults.storage.volumes import VolumeError, cannot_mount
from moldau.model.compiled import described, is_compiled


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    names = {s.name: None for scenarios in BY_BROKERS.values() for s in scenarios}
    parser.add_argument(
        "--only",
        action="append",
        choices=list(names),
        metavar="NAME",
        help=f"play only this one (may be repeated): {', '.join(names)}",
    )
    parser.add_argument(
        "--secured",
        action="store_true",
        help="mTLS between brokers, clients that log in by SCRAM over TLS, ACLs with the least "
        "rights; three brokers, and without --only these scenarios: " + ", ".join(SECURED),
    )
    parser.add_argument("--seed", type=int, default=1, help="of the scenarios that draw faults")
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    parser.add_argument(
        "--brokers", type=int, choices=[1, 3], help="of the cluster; otherwise one, then three"
    )
    parser.add_argument("--dir", type=Path, help="where data goes (default: a temporary folder)")
    parser.add_argument("--keep", action="store_true", help="keep data, logs and histories")
    parser.add_argument(
        "--write-docs", action="store_true", help="write the measured part of docs/reliability.md"
    )
    parser.add_argument(
        "--render", action="store_true", help="only write it, from the results of earlier runs"
    )
    options = parser.parse_args()
    if options.secured:
        if options.write_docs or options.render:
            parser.error("the page shows no secured runs: leave out --secured or the page")
        options.only = options.only or list(SECURED)
        options.brokers = options.brokers or 3
    if is_compiled() and (options.write_docs or options.render):
        parser.error("the page shows no compiled runs: leave out PYTHONPATH or the page")
    return options


def play(
    scenario: Scenario, home: Path, *, quick: bool, seed: int = 1, secured: bool = False
) -> Played:
    """One scenario, from start to verdict."""
    if missing := scenario.missing(home.parent):
        return Played(scenario=scenario, missing=missing, quick=quick)
    started = time.monotonic()
    run = Run(home, quick=quick, load=scenario.load, seed=seed, secured=secured)
    try:
        with run:
            scenario.play(run)
    except (ScenarioError, NodeError, VolumeError, NamespaceError) as error:
        run.problem(str(error))
    run.result.seconds = time.monotonic() - started
    return Played(scenario=scenario, result=run.result, quick=quick)


def play_all(options: argparse.Namespace, brokers: int, directory: Path) -> list[Played]:
    """The chosen scenarios of one size, each kept and reported as it ends."""
    all_played = []
    kind = ", secured" if options.secured else ""
    print(f"{brokers} broker{'s' if brokers > 1 else ''}{kind}:", flush=True)
    for scenario in BY_BROKERS[brokers]:
        if options.only and scenario.name not in options.only:
            continue
        home = directory / f"{brokers}-{scenario.name}"
        played = play(
            scenario, home, quick=options.quick, seed=options.seed, secured=options.secured
        )
        all_played.append(played)
        if not options.secured and not is_compiled():
            report.keep(brokers, played)
        print(report.line(played), flush=True)
        if not options.keep and has_passed(played):
            shutil.rmtree(home, ignore_errors=True)
    return all_played


def has_passed(played: Played) -> bool:
    return played.result is None or played.result.passed


def main() -> int:
    options = arguments()
    # Mounts, namespaces and processes are taken down on the way out.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if options.render:
        report.write_docs()
        return 0
    if options.dir is not None:
        Path(options.dir).mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="moldau-faults-", dir=options.dir))
    network = cannot_use_namespaces()
    disks = cannot_mount(directory)
    print(f"brokers: {described()}")
    print(f"network: {f'proxies ({network})' if network else 'namespaces, and proxies for delays'}")
    print(f"disks:   {disks or 'ext4 images and tmpfs'}", flush=True)
    all_played: list[Played] = []
    try:
        for brokers in [options.brokers] if options.brokers else sorted(BY_BROKERS):
            played = play_all(options, brokers, directory)
            all_played += played
            rows = {each.scenario.name: report.row_of(each) for each in played}
            print(report.markdown([each.scenario for each in played], rows))
    finally:
        if not options.keep and all(has_passed(played) for played in all_played):
            shutil.rmtree(directory, ignore_errors=True)
        else:
            print(f"logs and histories are in {directory}")
    if options.write_docs:
        report.write_docs()
    return 0 if all(has_passed(played) for played in all_played) else 1


if __name__ == "__main__":
    sys.exit(main())
