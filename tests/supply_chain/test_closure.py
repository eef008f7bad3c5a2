"""What an install of the product brings along."""

import pytest

from supply_chain.closure import closure, pinned
from supply_chain.licences import problems


def test_all_that_the_product_needs_is_there_with_what_that_needs() -> None:
    found = closure()
    # Named in pyproject.toml, needed by one of those, and by an extra of one.
    assert {"msgspec", "h11", "cryptography"} <= found.keys()
    assert "pytest" not in found
    lines = pinned(found).splitlines()
    assert [line.partition("==")[0] for line in lines] == sorted(found)


def test_the_product_may_be_shipped_with_all_of_it() -> None:
    assert problems(closure()) == {}


def test_an_unknown_extra_is_an_error() -> None:
    with pytest.raises(KeyError):
        closure(["nothing"])
