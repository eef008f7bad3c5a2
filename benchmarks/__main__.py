"""`python -m benchmarks`: runs the suites, prints the tables; exit code 1 when a suite failed."""

from __future__ import annotations

import argparse
import resource
import signal
import sys
from pathlib import Path
from types import ModuleType

from benchmarks import report
from benchmarks.bench import Bench
from benchmarks.harness import BenchmarkError, workspace
from benchmarks.suites import (
    client,
    cluster,
    cluster_life,
    compaction,
    consume,
    flush,
    groups,
    http,
    kafka,
    kafka_shapes,
    peers,
    produce,
    queues,
    search,
    small,
    start,
    tls,
    transactions,
)

SUITES: dict[str, ModuleType] = {
    "produce": produce,
    "consume": consume,
    "flush": flush,
    "small": small,
    "tls": tls,
    "start": start,
    "groups": groups,
    "transactions": transactions,
    "compaction": compaction,
    "client": client,
    "http": http,
    "search": search,
    "queues": queues,
    "cluster": cluster,
    "cluster-life": cluster_life,
    "peers": peers,
    "kafka": kafka,
    "kafka-shapes": kafka_shapes,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="small loads, to see that all runs: Java stays cold"
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=list(SUITES),
        metavar="NAME",
        help=f"run only this suite (may be repeated): {', '.join(SUITES)}",
    )
    parser.add_argument("--repetitions", type=int, default=3, help="of each load (default 3)")
    parser.add_argument(
        "--retries",
        type=int,
        default=1,
        help="how often a disturbed load is run again (default 1)",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        metavar="N",
        help="how long each server takes the load of the long run in kafka-shapes, for each policy"
        " (default 2, with --quick 0.2)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all values to a file")
    parser.add_argument("--dir", type=Path, help="where data goes: the disk that is measured")
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help="write the measured parts of docs/performance.md and README.md",
    )
    return parser.parse_args()


def main() -> int:
    options = arguments()
    # A signal that ends the run leaves no servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # A thousand idle connections need more than the usual limit, in the client and in the broker.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    chosen = {name: SUITES[name] for name in SUITES if not options.only or name in options.only}
    command = "python -m benchmarks " + " ".join(sys.argv[1:])
    failed = False
    with workspace(options.dir) as directory:
        bench = Bench(
            directory=directory,
            quick=options.quick,
            repetitions=max(1, options.repetitions),
            retries=options.retries,
            minutes=options.minutes or (0.2 if options.quick else 2.0),
        )
        with bench.progress(sum(suite.STEPS for suite in chosen.values())):
            for name, suite in chosen.items():
                try:
                    suite.run(bench)
                except BenchmarkError as error:
                    failed = True
                    bench.note(f"The suite `{name}` failed: {error}")
                    print(f"error: suite {name}: {error}", file=sys.stderr)
    report.print_tables(bench)
    if options.json:
        report.write_json(bench, options.json, command.strip())
    if options.write_docs:
        report.write_docs(bench, command.strip())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
