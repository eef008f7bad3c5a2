"""Login tokens: who can make one, where it is known, and when it ends."""

import base64
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from login_world import CLUSTER_SECRET, LoginWorld, stored_user

from moldau.api.login_tokens import EXPIRED, LIFETIME_MS
from moldau.security.principal import Principal, user
from moldau.security.sasl import AuthenticationError


def result(check: Coroutine[Any, Any, tuple[Principal, int]]) -> tuple[Principal, int]:
    """Own tokens are checked without waiting for anything."""
    try:
        check.send(None)
    except StopIteration as done:
        found: tuple[Principal, int] = done.value
        return found
    raise AssertionError("it waits")


def check(world: LoginWorld, token: str) -> tuple[Principal, int]:
    return result(world.tokens.check(token))


def refusal(world: LoginWorld, token: str) -> AuthenticationError:
    with pytest.raises(AuthenticationError) as caught:
        check(world, token)
    return caught.value


def test_a_token_names_its_user_until_it_expires():
    world = LoginWorld()
    issued = world.tokens.issue("alice")
    assert issued.expires_at_ms == world.clock.now_ms + LIFETIME_MS
    assert check(world, issued.token) == (user("alice"), issued.expires_at_ms)
    world.clock.now_ms = issued.expires_at_ms - 1
    check(world, issued.token)
    world.clock.now_ms = issued.expires_at_ms
    assert refusal(world, issued.token).text == EXPIRED


def test_every_broker_of_the_cluster_knows_it_and_no_other():
    world = LoginWorld()
    token = world.tokens_of(CLUSTER_SECRET).issue("alice").token
    check(world, token)
    refusal(world, world.tokens_of(b"d" * 32).issue("alice").token)


def test_a_new_password_or_the_end_of_a_user_ends_it():
    world = LoginWorld()
    token = world.tokens.issue("alice").token
    others = world.tokens.issue("bob").token
    before = world.users
    world.users = {**before, "alice": stored_user("alice", "another")}
    refusal(world, token)
    world.users = {"bob": before["bob"]}
    refusal(world, token)
    assert check(world, others)[0] == user("bob")
    world.users = before
    check(world, token)
    world.users = {}
    with pytest.raises(AuthenticationError):
        world.tokens.issue("alice")


def test_no_change_of_a_token_is_accepted():
    world = LoginWorld()
    token = world.tokens.issue("alice").token
    prefix, claims, signature = token.split(".")
    forged = base64.urlsafe_b64decode(claims + "==").replace(b"alice", b"admin")
    changed = [
        f"{prefix}.{base64.urlsafe_b64encode(forged).decode().rstrip('=')}.{signature}",
        f"{prefix}.{claims}.",
        f"{prefix}.{claims}",
        f"{prefix}..{signature}",
        f"{prefix}.",
        f"{token}=",
        f"{token} ",
        f"{token}.{signature}",
        token[:-1],
        f"{prefix}.{claims}.{signature[:-1]}é",
        f"{prefix}.{'a' * 10_000}.{signature}",
    ]
    for number in range(len(prefix) + 1, len(token)):
        other = "A" if token[number] != "A" else "B"
        changed.append(token[:number] + other + token[number + 1 :])
    for each in changed:
        refusal(world, each)


@given(st.text(max_size=200))
def test_no_other_text_is_a_token(text):
    world = LoginWorld()
    refusal(world, f"moldau1.{text}")
    refusal(world, text)


def test_nothing_shows_a_token():
    world = LoginWorld()
    issued = world.tokens.issue("alice")
    assert issued.token not in repr(issued)
    assert issued.token[20:40] not in refusal(world, issued.token + "x").reason


def test_tokens_of_others_are_checked_by_others():
    world = LoginWorld()

    class Others:
        async def check(self, token: str) -> tuple[Principal, int]:
            return user(token), 5

    tokens = world.tokens_of(CLUSTER_SECRET)
    tokens._others = Others()
    assert result(tokens.check("carol")) == (user("carol"), 5)
    with pytest.raises(AuthenticationError):
        result(tokens.check("moldau1.carol.x"))
