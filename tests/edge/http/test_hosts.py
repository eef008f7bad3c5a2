"""Which hosts are the broker, and how a request is answered that was sent to another one."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.edge.http.hosts import Hosts, canonical_host, parse_authority, with_origin_form


def scope(*hosts: bytes, server: tuple[str, int] | None = None, target: bytes = b"/"):
    return {
        "type": "http",
        "method": "GET",
        "headers": [(b"accept", b"*/*"), *((b"host", host) for host in hosts)],
        "server": server,
        "raw_path": target,
        "path": target.decode(),
    }


def status(hosts: Hosts, *sent: bytes, **rest) -> int:
    reply = hosts.refusal(scope(*sent, **rest))
    return 200 if reply is None else reply.status_code


@pytest.mark.parametrize(
    "host",
    [
        b"localhost",
        b"localhost:8080",
        b"LocalHost:1",
        b"localhost.:8080",
        b"localhost:",
        b"127.0.0.1",
        b"127.9.8.7:8080",
        b"[::1]",
        b"[::1]:8080",
        b"[0:0:0:0:0:0:0:1]:8080",
        b"[::ffff:127.0.0.1]:8080",
    ],
)
def test_loopback_is_always_known(host):
    assert status(Hosts(), host) == 200


@pytest.mark.parametrize(
    "host",
    [
        b"evil.example:8080",
        b"localhost.evil.example",
        b"evil-localhost",
        b"notlocalhost",
        b"127.0.0.1.evil.example",
        b"127.1",
        b"2130706433",
        b"0x7f000001",
        b"0.0.0.0:8080",
        b"[::]:8080",
        b"10.0.0.9",
        b"[::2]:8080",
        b"xn--localhost-8h8c",
    ],
)
def test_other_hosts_are_misdirected(host):
    assert status(Hosts(["0.0.0.0", "::", "broker.example"]), host) == 421


@pytest.mark.parametrize(
    "host",
    [
        b"",
        b":8080",
        b"[::1",
        b"::1",
        b"[::1]8080",
        b"localhost:http",
        b"localhost:0",
        b"localhost:65536",
        b"localhost:8080:1",
        b"user@localhost",
        b"localhost/x",
        b"localhost, evil.example",
        b" localhost",
        b"localhost..",
        b"[::1%25eth0]",
        b"\xfflocalhost",
        b"a" * 254,
    ],
)
def test_what_is_no_host_is_a_bad_request(host):
    assert status(Hosts(["*.example"]), host) == 400


def test_a_request_has_one_host():
    assert status(Hosts()) == 400
    assert status(Hosts(), b"localhost", b"localhost") == 400


def test_given_names_and_the_address_of_the_connection_are_known():
    hosts = Hosts(["Broker.Example", "fd00::5", "10.1.2.3", "*.svc.local"])
    for host in (b"broker.example.:80", b"[FD00:0::5]:8080", b"10.1.2.3", b"b-0.x.svc.local"):
        assert status(hosts, host) == 200
    for host in (b"svc.local", b"evilsvc.local", b"a.broker.example"):
        assert status(hosts, host) == 421
    assert status(hosts, b"10.0.0.9:8080", server=("10.0.0.9", 8080)) == 200
    assert status(hosts, b"10.0.0.9:8080", server=("::ffff:10.0.0.9", 8080)) == 200
    assert status(hosts, b"[fd00::9]:8080", server=("fd00::9", 8080)) == 200
    assert status(hosts, b"10.0.0.8:8080", server=("10.0.0.9", 8080)) == 421
    assert status(Hosts(["*"]), b"evil.example") == 200


def test_the_host_of_a_whole_url_counts_as_well():
    hosts = Hosts()
    assert status(hosts, b"localhost", target=b"http://localhost:8080/x") == 200
    assert status(hosts, b"localhost", target=b"HTTP://evil.example/x") == 421
    assert status(hosts, b"evil.example", target=b"http://localhost/x") == 421
    assert status(hosts, b"localhost", target=b"http://u:p@localhost/x") == 400
    assert status(hosts, b"localhost", target=b"http://") == 400


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/x", b"/x"),
        (b"http://localhost:8080/x/y", b"/x/y"),
        (b"https://localhost", b"/"),
        (b"*", b"*"),
    ],
)
def test_a_whole_url_becomes_its_path(target, path):
    changed = with_origin_form(scope(b"localhost", target=target))
    assert (changed["raw_path"], changed["path"]) == (path, path.decode())


def test_the_refusal_says_what_to_do():
    reply = Hosts().refusal(scope(b"evil.example:8080"))
    assert reply is not None
    said = json.loads(bytes(reply.body))
    assert (said["status"], said["title"]) == (421, "Misdirected Request")
    assert "evil.example" in said["detail"]
    assert "http.hosts" in said["hint"]


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text):
    found = parse_authority(text)
    if found is not None:
        again = canonical_host(f"[{found.host}]" if ":" in found.host else found.host)
        assert again == found.host


@given(st.binary(max_size=300))
def test_only_known_hosts_are_served(host):
    found = parse_authority(host.decode("latin-1"))
    expected = 400 if found is None else 200 if Hosts().knows(found.host) else 421
    assert status(Hosts(), host) == expected
