"""The file of profiles: who can read it, and what is in the way."""

import os
from pathlib import Path

import pytest

from moldau.cli.connection.profiles import (
    Profile,
    changed_profiles,
    find_profile,
    load_profiles,
    profiles_path,
)
from moldau.cli.errors import CommandError

SECRET = "pl4nted-s3cret"


@pytest.fixture
def saved() -> Path:
    with changed_profiles() as file:
        file.profiles["prod"] = Profile(http="https://b1:8080", user="ann", token=SECRET)
        file.current = "prod"
    return profiles_path()


def test_only_the_user_can_read_it(saved: Path) -> None:
    assert saved.stat().st_mode & 0o777 == 0o600
    assert saved.parent.stat().st_mode & 0o777 == 0o700
    assert os.listdir(saved.parent) == [saved.name], "no temporary file remains"


def test_it_keeps_what_was_saved(saved: Path) -> None:
    found = find_profile("")
    assert found is not None
    assert found[0] == "prod"
    assert found[1] == Profile(http="https://b1:8080", user="ann", token=SECRET)
    assert SECRET not in repr(found)


def test_a_failure_changes_nothing(saved: Path) -> None:
    before = saved.read_bytes()

    def fail() -> None:
        with changed_profiles() as file:
            file.profiles.clear()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert saved.read_bytes() == before


def test_one_that_others_can_read_is_refused(saved: Path) -> None:
    saved.chmod(0o640)
    with pytest.raises(CommandError, match="other users can read it") as caught:
        load_profiles()
    assert caught.value.hint == f"chmod 600 {saved}"


@pytest.mark.parametrize(
    "text",
    [
        f"profiles: [{SECRET}]",
        f"{SECRET}: {{",
        "profiles: {p: {x: 1}}",
        "current: 2026-99-99",
        "[" * 5000,
    ],
    ids=["list", "unclosed", "unknown", "date", "deep"],
)
def test_a_broken_one_is_reported_without_its_content(saved: Path, text: str) -> None:
    saved.write_text(text)
    with pytest.raises(CommandError, match="is not a valid file of profiles") as caught:
        load_profiles()
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__


def test_there_may_be_none() -> None:
    assert find_profile("") is None
    with pytest.raises(CommandError, match="there is no profile prod"):
        find_profile("prod")
