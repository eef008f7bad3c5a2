"""Fuzz what reads the bytes of others, guided by coverage.

python -m fuzz --seconds-max 600        all targets, each for its share of the time
python -m fuzz wire-requests            one target, for a minute
python -m fuzz --list                   the targets
python -m fuzz --check                  read the corpora once, without coverage and atheris
python -m fuzz --repeat FILE            repeat a finding
python -m fuzz --keep FILE              put the input of a finding into the corpus, once it is fixed
python -m fuzz --write-seeds            make the corpora again, from real messages
"""

import argparse
import logging
import sys
from pathlib import Path

from fuzz.campaign import can_fuzz, run_all, table
from fuzz.corpus import forget_grown, keep_input, seeds_of, write_seeds
from fuzz.findings import read_finding
from fuzz.guard import Guard
from fuzz.target import Target
from fuzz.targets import load, load_all

_USAGE = 2


def _say(text: str) -> None:
    print(text, flush=True)


def _repeat(path: Path) -> int:
    """Returns the exit code: 1 if it still happens."""
    wanted = read_finding(path)
    guard = Guard(load(wanted.target))
    found = None
    for data in wanted.inputs:
        found = guard.run(data)
    if found is None:
        _say(f"{path}: it does not happen any more")
        return 0
    _say(f"{found.trace}\n{found.kind} at {found.place}: {found.text}")
    return 1


def _keep(path: Path) -> int:
    """Returns the exit code."""
    wanted = read_finding(path)
    _say(f"{keep_input(load(wanted.target), wanted.kind, wanted.inputs[-1])}")
    return 0


def _check(targets: list[Target]) -> int:
    """Returns the exit code."""
    failures = 0
    for target in targets:
        guard = Guard(target)
        paths = seeds_of(target)
        for path in paths:
            finding = guard.run(path.read_bytes())
            if finding is not None:
                failures += 1
                _say(f"{path}: {finding.kind} at {finding.place}: {finding.text}")
        if target.reset is not None:
            target.reset()
        _say(f"{target.name}: {len(paths)} inputs")
    return 1 if failures else 0


def _fuzz(targets: list[Target], options: argparse.Namespace) -> int:
    """Returns the exit code."""
    if why := can_fuzz():
        _say(f"skipped: {why}")
        return 0
    if options.fresh:
        forget_grown()
    seconds = options.seconds_max or 60 * len(targets)
    outcomes = run_all(targets, seconds, options.seed, _say)
    _say("")
    for line in table(outcomes):
        _say(line)
    found = sum(len(outcome.findings) for outcome in outcomes)
    failed = sum(bool(outcome.problem) for outcome in outcomes)
    _say(f"{found} findings, {failed} targets that could not be fuzzed")
    return 1 if found or failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="all if none is named")
    parser.add_argument("--seconds-max", type=int, help="for all together (60 for each)")
    parser.add_argument("--seed", type=int, default=0, help="0: another one in each run (0)")
    parser.add_argument("--fresh", action="store_true", help="forget what earlier runs learned")
    parser.add_argument("--list", action="store_true", help="print the targets")
    parser.add_argument("--check", action="store_true", help="read the corpora once")
    parser.add_argument("--repeat", type=Path, metavar="FILE", help="a finding")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="a finding that was fixed")
    parser.add_argument("--write-seeds", action="store_true", help="make the corpora again")
    return parser


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    logging.getLogger().setLevel(logging.CRITICAL + 1)
    try:
        if options.repeat is not None:
            return _repeat(options.repeat)
        if options.keep is not None:
            return _keep(options.keep)
        targets = [load(name) for name in options.targets] or list(load_all())
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return _USAGE
    if options.list:
        for target in targets:
            _say(f"{target.name:24} {target.about}")
        return 0
    if options.write_seeds:
        for target in targets:
            _say(f"{target.name}: {write_seeds(target)} seeds")
        return 0
    if options.check:
        return _check(targets)
    return _fuzz(targets, options)


if __name__ == "__main__":
    sys.exit(main())
