"""The files of the web console: which, how they are cached, and that no path leads out of them."""

import gzip
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from http_cluster import Served, served
from moldau.edge.http.console_files import accepts_gzip, read_files
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.inprocess

PAGE = "<!doctype html><title>Moldau</title>" + " " * 1000
SCRIPT = "console.log('a script that is long enough to be compressed');\n" * 50


def build(folder: Path) -> Path:
    """What `make console` leaves, in small."""
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text(PAGE)
    (folder / "favicon.svg").write_text("<svg/>")
    (folder / "assets" / "index-D1a_-x9Z.js").write_text(SCRIPT)
    (folder / "assets" / "plain.css").write_text("body {}")
    (folder / "assets" / "index-D1a_-x9Z.js.map").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("console")
    (folder / "secret.html").write_text("outside")
    with served(console=build(folder / "dist")) as started:
        yield started


def get(
    world: Served, path: str, method: str = "GET", **headers: str
) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", world.port, timeout=wait_seconds_max())
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=named)
        reply = connection.getresponse()
        return reply, reply.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    "path",
    ["/ui/", "/ui/index.html", "/ui/topics", "/ui/topics/orders.json", "/ui/groups/a%2Fb.c?tab=1"],
)
def test_addresses_inside_the_console_give_its_page(world: Served, path: str) -> None:
    reply, body = get(world, path)
    assert (reply.status, body.decode()) == (200, PAGE)
    assert reply.getheader("content-type") == "text/html; charset=utf-8"
    assert reply.getheader("cache-control") == "no-cache"
    assert "script-src 'self'" in str(reply.getheader("content-security-policy"))
    assert "frame-ancestors 'none'" in str(reply.getheader("content-security-policy"))


def test_files_named_by_their_content_are_kept_for_good(world: Served) -> None:
    reply, body = get(world, "/ui/assets/index-D1a_-x9Z.js")
    assert (reply.status, body.decode()) == (200, SCRIPT)
    assert reply.getheader("content-type") == "text/javascript; charset=utf-8"
    assert reply.getheader("cache-control") == "public, max-age=31536000, immutable"
    for name in ("favicon.svg", "assets/plain.css"):
        reply, _ = get(world, f"/ui/{name}")
        assert (reply.status, reply.getheader("cache-control")) == (200, "no-cache")


@pytest.mark.parametrize(
    "path",
    [
        "robots.txt",
        "assets/gone-12345678.js",
        "assets/none",
        "assets/index-D1a_-x9Z.js.map",
        "assets/../../secret.html",
    ],
)
def test_other_files_are_not_found(world: Served, path: str) -> None:
    status, headers, body = world.ask("GET", f"/ui/{path}")
    assert (status, body["error"]) == (404, "RESOURCE_NOT_FOUND")
    assert headers["content-security-policy"].startswith("default-src 'none'; frame-ancestors")


@pytest.mark.parametrize(
    "path", ["../secret.html", "..%2fsecret.html", "topics/../../secret.html", "//etc/passwd"]
)
def test_no_path_leads_out_of_the_folder(world: Served, path: str) -> None:
    """It is a key: what is none is an address inside the console."""
    reply, body = get(world, f"/ui/{path}")
    assert (reply.status, body.decode()) == (200, PAGE)


def test_large_files_are_compressed_for_those_who_accept_it(world: Served) -> None:
    path = "/ui/assets/index-D1a_-x9Z.js"
    plain, _ = get(world, path)
    reply, body = get(world, path, accept_encoding="br, gzip;q=0.5")
    assert reply.getheader("content-encoding") == "gzip"
    assert reply.getheader("vary") == "accept-encoding"
    assert gzip.decompress(body).decode() == SCRIPT
    assert len(body) < len(SCRIPT)
    assert plain.getheader("content-encoding") is None
    assert plain.getheader("etag") != reply.getheader("etag")
    small, _ = get(world, "/ui/favicon.svg", accept_encoding="gzip")
    assert small.getheader("content-encoding") is None


@pytest.mark.parametrize(
    ("header", "accepts"),
    [
        ("", False),
        ("br", False),
        ("gzip", True),
        ("GZIP ; q=1", True),
        ("*", True),
        ("gzip;q=0", False),
        ("gzip;q=0.000", False),
        ("gzip;q=0.1", True),
    ],
)
def test_what_accepts_gzip(header: str, accepts: bool) -> None:
    assert accepts_gzip(header) is accepts


def test_who_has_a_version_does_not_get_it_again(world: Served) -> None:
    reply, _ = get(world, "/ui/")
    etag = str(reply.getheader("etag"))
    for asked in (etag, f'"other", W/{etag}', "*"):
        reply, body = get(world, "/ui/", if_none_match=asked)
        assert (reply.status, body) == (304, b"")
        assert reply.getheader("etag") == etag
        assert reply.getheader("cache-control") == "no-cache"
    assert get(world, "/ui/", if_none_match='"other"')[0].status == 200
    # The compressed one is another representation.
    assert get(world, "/ui/", if_none_match=etag, accept_encoding="gzip")[0].status == 200


def test_only_the_head_may_be_asked_for(world: Served) -> None:
    reply, body = get(world, "/ui/", "HEAD")
    assert (reply.status, body) == (200, b"")
    assert int(str(reply.getheader("content-length"))) == len(PAGE)
    status, headers, body = world.ask("POST", "/ui/")
    assert (status, set(headers["allow"].split(", "))) == (405, {"GET", "HEAD"})


def test_a_browser_is_led_to_the_console_and_programs_get_json(world: Served) -> None:
    for path in ("/", "/ui"):
        reply, _ = get(world, path, accept="text/html,application/xhtml+xml;q=0.9,*/*;q=0.8")
        assert (reply.status, reply.getheader("location")) == (303, "/ui/")
    assert get(world, "/", "HEAD", accept="text/html")[0].status == 303
    assert world.ask("GET", "/", headers={"accept": "*/*"})[2]["name"] == "moldau"


def test_a_link_of_another_site_works_and_a_frame_of_it_does_not(world: Served) -> None:
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    for path, status in (("/", 303), ("/ui/", 200)):
        followed = {**link, "accept": "text/html"}
        assert get(world, path, **followed, **{"sec-fetch-dest": "document"})[0].status == status
        assert get(world, path, **followed, **{"sec-fetch-dest": "iframe"})[0].status == 403


def test_another_host_is_refused(world: Served) -> None:
    assert get(world, "/ui/", host="evil.example")[0].status == 421


def test_an_install_without_the_console_says_how_to_get_it(tmp_path: Path) -> None:
    with served(console=tmp_path / "dist") as bare:
        for path in ("/ui/", "/ui/topics"):
            status, _, body = bare.ask("GET", path)
            assert status == 404
            assert "make console" in body["hint"]
        # Built while the broker runs.
        build(tmp_path / "dist")
        assert get(bare, "/ui/")[0].status == 200


def test_files_that_are_no_part_of_the_page_are_left_out(tmp_path: Path) -> None:
    assert read_files(tmp_path / "none") == {}
    assert sorted(read_files(build(tmp_path / "dist"))) == [
        "assets/index-D1a_-x9Z.js",
        "assets/plain.css",
        "favicon.svg",
        "index.html",
    ]
