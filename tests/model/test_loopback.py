"""Which addresses are this machine."""

import pytest

from moldau.model.loopback import is_loopback, reaches_loopback


@pytest.mark.parametrize(
    ("host", "is_local", "reaches_local"),
    [
        ("127.0.0.1", True, True),
        ("127.8.8.8", True, True),
        ("::1", True, True),
        ("[::1]", True, True),
        ("localhost", True, True),
        ("LOCALHOST.", True, True),
        ("0.0.0.0", False, True),
        ("::", False, True),
        ("10.0.0.1", False, False),
        ("localhost.example", False, False),
        ("", False, False),
    ],
)
def test_loopback_is_recognised(host: str, is_local: bool, reaches_local: bool) -> None:
    assert is_loopback(host) is is_local
    assert reaches_loopback(host) is reaches_local
