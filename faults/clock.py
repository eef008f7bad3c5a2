"""An entry point for brokers whose wall clock can be made to jump; never in the product.

    FAULTS_CLOCK=F python -m faults.clock broker start …

runs the command line as `moldau` does. The wall clock is off by the seconds in the file F; clocks
that only count up are left alone, as by an operator who sets the time.
"""

import os
import time
from typing import Final

CLOCK_VARIABLE: Final = "FAULTS_CLOCK"
_LOOK_SECONDS: Final = 0.05


class Skew:
    """The jump that is in force, looked up now and then."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._looked = float("-inf")
        self._nanoseconds = 0
        self._time_ns = time.time_ns
        self._monotonic = time.monotonic

    def time_ns(self) -> int:
        now = self._monotonic()
        if now - self._looked > _LOOK_SECONDS:
            self._looked = now
            try:
                with open(self._path) as file:
                    self._nanoseconds = int(float(file.read() or 0) * 1e9)
            except OSError:
                self._nanoseconds = 0
        return self._time_ns() + self._nanoseconds

    def time(self) -> float:
        return self.time_ns() / 1e9


if __name__ == "__main__":
    skew = Skew(os.environ[CLOCK_VARIABLE])
    time.time_ns = skew.time_ns
    time.time = skew.time

    from moldau.cli.main import main

    main()
