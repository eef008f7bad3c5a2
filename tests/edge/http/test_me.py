"""Who asks, and what they may do: to a broker without users, and with some."""

import json

import pytest
from secured_broker import secured_broker

from http_cluster import served
from moldau.security.acl import ON_CLUSTER

pytestmark = pytest.mark.system

ALL = [operation.name for operation in ON_CLUSTER]


def test_without_users_everyone_may_do_everything() -> None:
    with served() as world:
        status, _, me = world.ask("GET", "/api/v1/me")
        assert status == 200
        assert me == {
            "user": "",
            "has_login": False,
            "read_only": False,
            "authorizes": False,
            "cluster": ALL,
            "expires_at_ms": None,
            "play": False,
        }
        assert world.ask("GET", "/api/v1/me?user=x")[0] == 400


def test_with_users_each_sees_their_own_rights() -> None:
    with secured_broker() as secured:
        assert secured.ask("nobody", "GET", "/api/v1/me")[0] == 401
        reader = secured.read_as("reader", "/api/v1/me")
        assert (reader["user"], reader["cluster"]) == ("reader", [])
        assert reader["has_login"]
        assert reader["authorizes"]
        admin = secured.read_as("admin", "/api/v1/me")
        assert (admin["user"], admin["cluster"]) == ("moldau-admin", ALL)
        # The page itself is for everyone, also with a login that has ended.
        for who, headers in (("nobody", {}), ("nobody", {"authorization": "Bearer ended"})):
            status, reply, _ = secured.ask(
                who, "GET", "/", headers={"accept": "text/html", **headers}
            )
            assert (status, reply.getheader("location")) == (303, "/ui/")
            assert secured.ask(who, "GET", "/ui/", headers=headers)[0] in (200, 404)
        assert secured.ask("nobody", "POST", "/ui/")[0] == 401


def test_a_token_ends_at_a_known_time() -> None:
    with secured_broker() as secured:
        body = {"user": "reader", "password": "planted-password-2"}
        _, _, text = secured.ask("nobody", "POST", "/api/v1/login", body)
        login = json.loads(text)
        bearer = {"authorization": f"Bearer {login['token']}"}
        _, _, text = secured.ask("nobody", "GET", "/api/v1/me", headers=bearer)
        assert json.loads(text)["expires_at_ms"] == login["expires_at_ms"]
