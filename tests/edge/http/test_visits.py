"""Who pays for the time of a request."""

from typing import Any, cast

import pytest
from guarded_calls import GuardedWorld

from moldau.api.entrance import Entrance
from moldau.edge.http.visits import METRICS, PUBLIC, Visits
from moldau.security.principal import ANONYMOUS
from moldau.security.quotas import QuotaEntity, QuotaKey


async def waits_after(method: str, path: str) -> float:
    """How long the anonymous user has to wait after a request of one."""
    world = GuardedWorld()
    quotas = world.sessions.quotas
    quotas.replace({QuotaEntity("", None): {QuotaKey.REQUEST: 1e-6}})

    async def app(scope: object, receive: object, send: object) -> None:
        sum(range(10_000))

    visits = Visits(cast(Any, app), Entrance(world.sessions))
    scope = {"type": "http", "method": method, "path": path, "headers": [], "client": ("h", 1)}
    await visits(scope, cast(Any, None), cast(Any, None))
    meter = quotas.meter(ANONYMOUS, None)
    assert meter is not None
    return meter.wait(QuotaKey.REQUEST)


@pytest.mark.parametrize(("method", "path"), PUBLIC)
async def test_unknown_clients_that_ask_for_what_is_public_charge_nobody(
    method: str, path: str
) -> None:
    assert await waits_after(method, path) == 0


@pytest.mark.parametrize(("method", "path"), [METRICS, ("GET", "/api/v1/topics")])
async def test_all_other_requests_are_charged(method: str, path: str) -> None:
    assert await waits_after(method, path) > 0
