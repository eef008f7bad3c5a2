"""Assignors are found by name; foreign ones can do no harm."""

import logging
from importlib.metadata import EntryPoint

import pytest

from moldau.groups.assignors.interface import AssignorError, GroupSpec, MemberSpec
from moldau.model.errors import ConfigError
from moldau.model.ids import TopicId
from moldau.server import assignors

TOPIC = TopicId(b"t")
SPEC = GroupSpec(members={"m": MemberSpec(topics=frozenset({TOPIC}))}, topics={TOPIC: 1})


class Good:
    name = "good"

    def assign(self, spec):
        return {"m": {b"t": frozenset({0})}}


class Raises:
    name = "raises"

    def assign(self, spec):
        raise RuntimeError("no idea")


class Astray:
    name = "astray"

    def assign(self, spec):
        return {"m": {b"other": frozenset({0})}}


class Misnamed(Good):
    name = "other"


class Unmade:
    def __init__(self):
        raise RuntimeError("cannot")


def entry(name):
    value = f"{__name__}:{name.capitalize()}"
    found = EntryPoint(name=name, value=value, group=assignors.ENTRY_POINTS)
    # The module of a test cannot be imported by its name.
    object.__setattr__(found, "load", lambda: globals()[name.capitalize()])
    return found


def load(*names):
    return assignors.load_assignors(names, [entry(name) for name in ("good", "raises", "astray")])


def test_the_built_in_ones_are_found_in_the_order_asked_for():
    assert [one.name for one in assignors.load_assignors(["range", " uniform", "range"])] == [
        "range",
        "uniform",
    ]


def test_an_installed_one_is_loaded():
    (good,) = load("good")
    assert good.name == "good"
    assert good.assign(SPEC) == {"m": {b"t": frozenset({0})}}


def test_one_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(ConfigError, match=r"'mine'; available: uniform, range, good"):
        load("mine")


@pytest.mark.parametrize("name", ["misnamed", "unmade"])
def test_one_that_cannot_be_used_is_refused_at_the_start(name):
    with pytest.raises(ConfigError, match=name):
        assignors.load_assignors([name], [entry(name)])


@pytest.mark.parametrize("name", ["raises", "astray"])
def test_what_a_foreign_one_does_wrong_is_logged_once(name, caplog):
    (bad,) = load(name)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            with pytest.raises(AssignorError):
                bad.assign(SPEC)
    assert len(caplog.records) == 1
