"""The clock of a broker process: the only place that reads the system time."""

import time

from moldau.model.ids import TimestampMs


class SystemClock:
    def wall_ms(self) -> TimestampMs:
        return TimestampMs(time.time_ns() // 1_000_000)

    # The function itself, without a wrapper: it is called after every request.
    monotonic = staticmethod(time.monotonic)
