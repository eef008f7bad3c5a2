"""Errors of the client cross processes whole."""

import copy
import pickle
import traceback

import pytest

from moldau import (
    BufferFullError,
    ClientError,
    DeliveryFailedError,
    InvalidArgumentError,
    Producer,
    RejectedError,
    UnavailableError,
)
from moldau.model.errors import ErrorCode


@pytest.mark.parametrize(
    "error",
    [
        ClientError("failed", hint="do"),
        InvalidArgumentError("failed", hint="do"),
        BufferFullError("failed", hint="do"),
        RejectedError("failed", 3, hint="do"),
        UnavailableError("failed", 7, hint="do"),
        DeliveryFailedError("failed", [ClientError("one", hint="first")], hint="do"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_pickled_with_all_that_it_says(error: ClientError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert (str(again), again.hint) == ("failed", "do")
        if isinstance(error, RejectedError) and isinstance(again, RejectedError):
            assert again.name == error.name
        if isinstance(again, DeliveryFailedError):
            assert [(str(one), one.hint) for one in again.errors] == [("one", "first")]


def test_a_traceback_shows_the_hint_once() -> None:
    error = pickle.loads(pickle.dumps(ClientError("failed", hint="do this")))
    error.add_note("hint: do this")
    shown = "".join(traceback.format_exception(error))
    assert shown.endswith("ClientError: failed\nhint: do this\n")


def test_hints_name_python_arguments() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Producer("a:http")
    assert "bootstrap_servers=" in caught.value.hint
    assert " -b " not in caught.value.hint


def test_who_lacks_a_right_learns_how_to_get_it() -> None:
    refused = RejectedError("failed", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    assert "moldau acl add" in refused.hint
    own = RejectedError("failed", ErrorCode.TOPIC_AUTHORIZATION_FAILED, hint="do")
    assert own.hint == "do"
    assert RejectedError("failed", ErrorCode.NOT_LEADER_OR_FOLLOWER).hint == ""
