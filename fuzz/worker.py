"""The process that fuzzes one target: it imports the product instrumented, and runs atheris.

    python -m fuzz.worker TARGET SEED SECONDS FOLDER CORPUS…

A finding is written to a file and does not end the run, so that one mistake does not hide others.
What kills the process (a crash of an extension, a hang inside of one) leaves its input in FOLDER.
"""

import gc
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atheris

_HANG_SECONDS = 60
"""Of the clock, for what no signal can interrupt; the guard's own bound is much shorter."""
_MEMORY_MEBIBYTES = 1536


def main(arguments: list[str]) -> None:
    name, seed, seconds, folder, *corpora = arguments
    logging.getLogger().setLevel(logging.CRITICAL + 1)
    warnings.simplefilter("ignore")
    with atheris.instrument_imports(include=["moldau"]):
        _instrument_generated()
        from fuzz.findings import write_finding
        from fuzz.guard import Guard, limit_address_space
        from fuzz.targets import load

        guard = Guard(load(name))
        limit_address_space()
        gc.freeze()
        known: set[str] = set()

        def run(data: bytes) -> None:
            finding = guard.run(data)
            if finding is not None and finding.identity not in known:
                known.add(finding.identity)
                path = write_finding(finding, Path(folder))
                print(f"FINDING {path}", file=sys.stderr, flush=True)

        options = [
            f"-seed={seed}",
            f"-max_total_time={seconds}",
            f"-max_len={guard.target.bytes_max}",
            f"-timeout={_HANG_SECONDS}",
            f"-rss_limit_mb={_MEMORY_MEBIBYTES}",
            f"-artifact_prefix={folder}/{name}-",
            "-print_final_stats=1",
            "-use_value_profile=0",
        ]
        atheris.Setup([sys.argv[0], *options, *corpora], run)
        atheris.Fuzz()


def _instrument_generated() -> None:
    """The codecs of messages are generated at their first use, which no import hook sees."""
    from moldau.wire import decoder

    compile_decoder = decoder.compile_decoder

    def instrumented(cls: Any, version: int) -> Callable[[memoryview, int], Any]:
        found: Callable[[memoryview, int], Any] = atheris.instrument_func(
            compile_decoder(cls, version)
        )
        return found

    decoder.compile_decoder = instrumented


if __name__ == "__main__":
    main(sys.argv[1:])
