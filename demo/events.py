"""The made-up visitors of a web shop, whose clicks the demo sends. Pure: seeded, no clock."""

import json
import math
import random
from typing import Final, NamedTuple

PAGES: Final = (
    "/", "/search", "/product/kettle", "/product/lamp", "/product/chair", "/cart", "/checkout",
    "/product/table", "/help", "/account", "/product/rug", "/returns",
)  # fmt: skip
"""The first ones are visited the most."""
COUNTRIES: Final = ("CZ", "DE", "AT", "PL", "FR", "GB", "US")
DEVICES: Final = ("phone", "laptop", "tablet")
VISITORS: Final = 5000
WAVE_SECONDS: Final = 30.0
"""How long a day is in the demo: clicks come and go by it."""


class Click(NamedTuple):
    key: bytes
    value: bytes


class Visitors:
    """Makes one click after another."""

    def __init__(self, seed: int = 1) -> None:
        self._rng = random.Random(seed)
        self._number = 0
        self._page_weights = [1 / (place + 1) for place in range(len(PAGES))]

    def click(self, now_ms: int) -> Click:
        rng = self._rng
        visitor = int(rng.betavariate(1, 4) * VISITORS)
        self._number += 1
        page = rng.choices(PAGES, self._page_weights)[0]
        value = {
            "id": self._number,
            "visitor": f"v{visitor:04d}",
            "page": page,
            "country": COUNTRIES[visitor % len(COUNTRIES)],
            "device": DEVICES[visitor % len(DEVICES)],
            "took_ms": round(rng.lognormvariate(4.5, 0.6)),
            "basket": round(rng.expovariate(1 / 40), 2) if page == "/checkout" else None,
            "at": now_ms,
        }
        return Click(f"v{visitor:04d}".encode(), json.dumps(value, separators=(",", ":")).encode())


def rate_at(seconds: float, mean: float) -> float:
    """Clicks per second: half as many by night, half as many again by day."""
    return mean * (1 - 0.5 * math.cos(2 * math.pi * seconds / WAVE_SECONDS))
