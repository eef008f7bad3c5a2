"""How much chance is given to random tests: little in the runs that decide, more where one asks.

The runs that decide what lands take the same few seeds and examples each time: more of the same
would only make everyone wait. `make test-long` tries ten times as many.
"""

import os
from typing import Final

EFFORT: Final = int(os.environ.get("MOLDAU_TEST_EFFORT", "1"))
EXAMPLES: Final = 25 * EFFORT
"""Of each property test."""


def seeds(count: int) -> range:
    return range(count * EFFORT)
