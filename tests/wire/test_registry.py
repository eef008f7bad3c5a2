"""The list of APIs agrees with the classes, and costs little to load."""

import subprocess
import sys

import pytest

from moldau.wire.registry import APIS, REQUESTS, RESPONSES
from moldau.wire.schema import Request, Response

pytestmark = pytest.mark.system


@pytest.mark.parametrize("key", list(APIS), ids=lambda key: APIS[key].title)
def test_the_table_says_of_each_api_what_its_classes_say(key: int) -> None:
    api = APIS[key]
    request, response = REQUESTS[key], RESPONSES[key]
    assert issubclass(request, Request)
    assert issubclass(response, Response)
    for cls in (request, response):
        assert key == cls.API_KEY
        assert api.versions == cls.VERSIONS
        assert api.flexible == cls.FLEXIBLE
    assert (request.__name__, response.__name__) == (f"{api.title}Request", f"{api.title}Response")


def test_an_api_that_is_not_in_the_table_has_no_classes() -> None:
    assert 999 not in APIS
    with pytest.raises(KeyError):
        REQUESTS[999]


def test_importing_the_codec_loads_no_message() -> None:
    code = (
        "import sys, moldau.wire.framing, moldau.wire.registry\n"
        "print([m for m in sys.modules if m.startswith('moldau.wire.messages.')])\n"
        "print([m for m in ('moldau.wire.decoder', 'asyncio', 'socket') if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split("\n")[:2] == ["[]", "[]"]


def test_an_api_is_loaded_when_it_is_asked_for() -> None:
    code = (
        "import sys\n"
        "from moldau.wire.registry import REQUESTS\n"
        "REQUESTS[0]\n"
        "print([m for m in sys.modules if m.startswith('moldau.wire.messages.')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "['moldau.wire.messages.produce']"
