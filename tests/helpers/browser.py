"""A real browser, where this machine has one: it opens a page, and the page reports.

The browser is MOLDAU_TEST_BROWSER, or a Chromium on the PATH. The page is served by the test, runs
a script, and the script posts what it found to a server of the test; so no driver is needed.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty, Queue
from typing import Any

import pytest

from moldau.testing.waiting import wait_seconds_max

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "headless_shell")
# Not --single-process, which is faster: one start in forty crashes.
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-proxy-server",
    # Else it asks for permission before a page reaches this machine, and the broker is not tested.
    "--disable-features=LocalNetworkAccessChecks,PrivateNetworkAccessSendPreflights",
)


def find_browser() -> str:
    """Skips the test if there is none."""
    given = os.environ.get("MOLDAU_TEST_BROWSER")
    found = given or next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium here; name one by MOLDAU_TEST_BROWSER=/path/to/chromium")
    return found


class PageServer:
    """Serves one page, which runs a script; keeps what pages post to it."""

    def __init__(self, script: str, port: int = 0) -> None:
        """In the script, `report(value)` posts to this server, or to `script`'s own `REPORTS`."""
        reports: Queue[Any] = Queue()
        page = f"""<!doctype html><meta charset=utf-8><body><script>
            const report = (found) => fetch(
                (globalThis.REPORTS ?? "") + "/report",
                {{method: "POST", mode: "no-cors", body: JSON.stringify(found)}},
            );
            (async () => {{ {script} }})().catch((error) => report({{failed: String(error)}}));
        </script>""".encode()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/html")
                self.send_header("content-length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)

            def do_POST(self) -> None:
                reports.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *said: object) -> None:
                pass

        self._reports = reports
        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def next_report(self) -> Any:
        try:
            return self._reports.get(timeout=wait_seconds_max())
        except Empty:
            pytest.fail("the page reported nothing")

    def close(self) -> None:
        """May be called twice."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def serving(script: str = "", port: int = 0) -> Iterator[PageServer]:
    server = PageServer(script, port)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def visiting(browser: str, url: str, *, names: dict[str, str] | None = None) -> Iterator[None]:
    """A browser that has `url` open; `names` are resolved to the given addresses."""
    rules = ", ".join(f"MAP {name} {address}" for name, address in (names or {}).items())
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [
                browser,
                *_FLAGS,
                f"--user-data-dir={profile}",
                *([f"--host-resolver-rules={rules}"] if rules else []),
                # Without it, it prints nothing and waits for nothing: the browser ends at once.
                "--remote-debugging-port=0",
                url,
            ],
            env={**os.environ, "HOME": profile},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
