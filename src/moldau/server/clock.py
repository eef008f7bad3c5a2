"""Owns the one clock of a broker process: the only place that reads the time."""

import time

from moldau.model.ids import TimestampMs


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> TimestampMs:
        return TimestampMs(time.time_ns() // 1_000_000)

    # The function itself, without a call of ours around it: it is asked after every request.
    monotonic = staticmethod(time.monotonic)
