"""Fails a test that needs more than its kind says: a pure one that sleeps, one in process that
starts a process, one that starts Spark beside others.

Sockets and processes are seen by an audit hook of the interpreter, whoever asks for them. Sleeping,
threads and clocks raise no event in every Python that we run on: they are replaced before anything
of ours is imported. Clocks that only measure how long something took (`perf_counter`) are nobody's
business. Other threads than the test's are left alone: a pure test can start none of its own.
"""

import functools
import sys
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, Final

import pytest

from harness.kinds import INPROCESS, PURE, SPARK, kind_of

_PROCESS: Final = dict.fromkeys(
    ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"),
    "starts a process",
)
_FORBIDDEN: Final[dict[str, dict[str, str]]] = {
    PURE: {
        **_PROCESS,
        "socket.__new__": "opens a socket",
        "socket.getaddrinfo": "looks up an address",
    },
    INPROCESS: _PROCESS,
}
"""By kind and event of the interpreter, what a test of that kind may not do."""
_CLOCKS: Final = ("time", "time_ns", "monotonic", "monotonic_ns")


class WrongKindError(AssertionError):
    """A test did what only other kinds of tests may."""


class _Watch:
    kind = ""
    forbidden: dict[str, str] = {}
    found: list[str] = []

    def begin(self, kind: str) -> None:
        self.kind, self.forbidden, self.found = kind, _FORBIDDEN.get(kind, {}), []

    def end(self) -> None:
        self.kind, self.forbidden = "", {}

    def object_to(self, deed: str) -> None:
        # Noted as well, since what the test calls may catch the error.
        self.found.append(f"the test {deed}, which a test of the kind {self.kind} may not")
        raise WrongKindError(self.found[-1])


_watch: Final = _Watch()


def _is_pure_test() -> bool:
    return _watch.kind == PURE and threading.current_thread() is threading.main_thread()


def _audit(event: str, _: tuple[Any, ...]) -> None:
    if (deed := _watch.forbidden.get(event)) is not None:
        _watch.object_to(deed)


def _guarded_clock(name: str, clock: Callable[[], Any]) -> Callable[[], Any]:
    def read() -> Any:
        if _is_pure_test():
            frame = sys._getframe(1)
            asks = frame.f_globals.get("__name__", "")
            if asks.startswith("moldau.") or "/tests/" in frame.f_code.co_filename:
                _watch.object_to(f"reads the real clock (time.{name} in {asks})")
        return clock()

    return read


def _guarded(deed: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        if _is_pure_test():
            _watch.object_to(deed)
        return function(*arguments, **named)

    return call


sys.addaudithook(_audit)
time.sleep = _guarded("sleeps", time.sleep)
threading.Thread.start = _guarded(  # type: ignore[method-assign]
    "starts a thread", threading.Thread.start
)
for _name in _CLOCKS:
    setattr(time, _name, _guarded_clock(_name, getattr(time, _name)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _watch.begin(kind_of(item.path))
    try:
        return (yield)
    finally:
        _watch.end()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    if nextitem is None:
        # With the last test end the brokers of the session, which tests of other kinds started.
        _watch.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    if _watch.found:
        pytest.fail(_watch.found[0], pytrace=False)
    if _watch.kind != SPARK and _has_spark_session():
        pytest.fail("the test starts Spark: mark its file as of the kind spark", pytrace=False)
    return result


def _has_spark_session() -> bool:
    core = sys.modules.get("pyspark.core.context")
    return core is not None and core.SparkContext._active_spark_context is not None
