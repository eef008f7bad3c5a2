"""Which licence each package has, and whether the product may be shipped with it.

The product has the licence Apache-2.0. Allowed is what asks for no more than a notice, and the
weak copyleft of libraries that are used unchanged. What is not in the table is refused until
somebody has read it.
"""

import re
from collections.abc import Mapping
from importlib.metadata import Distribution
from typing import Final

ALLOWED: Final = (
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "0BSD",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "PSF-2.0",
    "Python-2.0",
    "Unlicense",
    "Zlib",
)
_NAMES: Final = {
    "apache": "Apache-2.0",
    "apache 2": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache software license 2.0": "Apache-2.0",
    "apache license": "Apache-2.0",
    "http://www.apache.org/licenses/license-2.0": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "new bsd": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "3-clause bsd": "BSD-3-Clause",
    "isc license (iscl)": "ISC",
    "isc license": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
    "psf": "PSF-2.0",
    "the unlicense (unlicense)": "Unlicense",
}
"""As packages without an SPDX expression write it, in lower case."""
READ: Final[Mapping[str, str]] = {
    "crc32c": "GNU Lesser General Public License v2 or later (LGPLv2+)",
    "python-dateutil": "Apache-2.0 AND BSD-3-Clause AND Dual License",
}
"""Packages with a licence that is not in the table, and that somebody has read. crc32c is LGPL:
used unchanged, as a library of its own that users can replace. dateutil gives a choice of two."""
_WORD: Final = re.compile(r"[^\s()]+")


def licence_of(package: Distribution) -> str:
    """As an SPDX expression where it can be found, or as the package says; empty: unknown."""
    metadata = package.metadata
    expressions = metadata.get_all("License-Expression") or ()
    if expressions:
        return str(expressions[0])
    classified = [
        line.rpartition(" :: ")[2]
        for line in metadata.get_all("Classifier") or ()
        if line.startswith("License :: ") and line != "License :: OSI Approved"
    ]
    named = {_NAMES.get(name.lower(), name) for name in classified}
    if len(named) == 1:
        return str(named.pop())
    text = "".join(metadata.get_all("License") or ()).strip()
    first = text.splitlines()[0] if text else ""
    found = _NAMES.get(first.lower(), first)
    return found if not named else " AND ".join(sorted({*named, found} - {""}))


def is_allowed(expression: str) -> bool:
    """Whether every licence of an AND, and one of an OR, is in the table."""
    if not expression:
        return False
    return any(
        all(_is_known(part) for part in re.split(r"\bAND\b", alternative))
        for alternative in re.split(r"\bOR\b", expression)
    )


def _is_known(part: str) -> bool:
    words = " ".join(_WORD.findall(part))
    return words in ALLOWED


def problems(packages: Mapping[str, Distribution]) -> dict[str, str]:
    """Why packages are refused, by name."""
    found: dict[str, str] = {}
    for name, package in packages.items():
        expression = licence_of(package)
        if is_allowed(expression) or (name in READ and READ[name] == expression):
            continue
        found[name] = expression or "no licence in its metadata"
    return found
