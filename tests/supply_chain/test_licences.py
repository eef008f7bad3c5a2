"""Which licences are allowed, and how they are found."""

from email.message import Message
from importlib.metadata import Distribution
from typing import Any, cast

import pytest

from supply_chain.licences import is_allowed, licence_of, problems


def package(**fields: str | list[str]) -> Distribution:
    metadata = Message()
    for name, values in fields.items():
        for value in [values] if isinstance(values, str) else values:
            metadata[name.replace("_", "-")] = value

    class Made:
        pass

    made: Any = Made()
    made.metadata = metadata
    return cast("Distribution", made)


@pytest.mark.parametrize(
    ("made", "licence"),
    [
        (package(License_Expression="MIT OR Apache-2.0", License="other"), "MIT OR Apache-2.0"),
        (package(Classifier=["License :: OSI Approved :: MIT License"]), "MIT"),
        (package(License="Apache License 2.0"), "Apache-2.0"),
        (package(License="A long text\nof a licence"), "A long text"),
        (package(), ""),
    ],
)
def test_a_licence_is_found_where_the_package_names_it(made: Distribution, licence: str) -> None:
    assert licence_of(made) == licence


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("Apache-2.0 AND MIT", True),
        ("GPL-3.0-only OR MIT", True),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-3.0-only", False),
        ("", False),
        ("(MIT)", True),
    ],
)
def test_every_licence_of_an_and_and_one_of_an_or_must_be_allowed(
    expression: str, allowed: bool
) -> None:
    assert is_allowed(expression) == allowed


def test_an_exception_is_for_one_package_and_the_licence_that_was_read() -> None:
    lesser = "GNU Lesser General Public License v2 or later (LGPLv2+)"
    made = package(Classifier=[f"License :: OSI Approved :: {lesser}"])
    assert problems({"crc32c": made}) == {}
    assert problems({"another": made}) == {"another": lesser}
    assert problems({"crc32c": package(License_Expression="GPL-3.0-only")}) == {
        "crc32c": "GPL-3.0-only"
    }
