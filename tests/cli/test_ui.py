"""`moldau ui`: which address it opens, and what it says when there is none."""

import socket
import webbrowser
from collections.abc import Iterator
from pathlib import Path

import pytest
from tls_world import TlsWorld

from http_cluster import Served, served
from moldau.cli.errors import ExitCode
from moldau.client.cluster_client import ClusterClient
from moldau.client.errors import NotFoundError

pytestmark = pytest.mark.inprocess


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    def note(url: str) -> bool:
        found.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", note)
    return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "index.html").write_text("<!doctype html>")
    with served(console=tmp_path) as started:
        yield started


def free_address() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


def test_it_opens_the_console_of_the_first_broker_that_responds(cli, world, opened) -> None:
    addresses = f"{free_address()},{world.address}"
    done = cli("ui", "--http", addresses)
    assert done.code == 0, done.err
    assert opened == [f"http://{world.address}/ui/"]
    assert done.err == f"opening http://{world.address}/ui/\n"


def test_it_only_prints_the_address(cli, world, opened) -> None:
    done = cli("ui", "--print", "--http", world.address)
    assert (done.code, done.out, done.err) == (0, f"http://{world.address}/ui/\n", "")
    assert opened == []


def test_the_address_is_that_of_the_profile(cli, world, opened) -> None:
    assert cli("profile", "add", "p", "--http", world.address, "--use").code == 0
    assert cli("ui").code == 0
    assert opened == [f"http://{world.address}/ui/"]


def test_without_a_broker_it_says_so(cli, opened) -> None:
    address = free_address()
    done = cli("ui", "--http", address)
    assert (done.code, opened) == (ExitCode.UNREACHABLE, [])
    assert f"cannot reach {address}" in done.err


def test_a_broker_without_the_console_says_how_to_build_it(cli, opened, tmp_path) -> None:
    with served(console=tmp_path / "none") as world:
        done = cli("ui", "--http", world.address)
        assert (done.code, opened) == (ExitCode.NOT_FOUND, [])
        assert "make console" in done.err
        with pytest.raises(NotFoundError):
            ClusterClient([world.address]).console()


def test_without_a_browser_the_address_is_the_hint(cli, world, monkeypatch) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    done = cli("ui", "--http", world.address)
    assert done.code == ExitCode.FAILED
    assert f"open it yourself: http://{world.address}/ui/" in done.err


def test_with_tls_the_address_says_so(cli, opened, tmp_path) -> None:
    tls = TlsWorld(tmp_path)
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "index.html").write_text("<!doctype html>")
    with served(console=tmp_path / "dist", tls=tls.contexts()) as world:
        at = f"localhost:{world.port}"
        done = cli("ui", "--http", at, "--cafile", tls.ca_file)
        assert (done.code, opened) == (0, [f"https://{at}/ui/"]), done.err
