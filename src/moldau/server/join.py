"""Joins a running cluster through one of its members, with retries.

It is retriable if the member is still starting, or its cluster has no leader. A rejection is not:
the error says what to change, and the broker does not start.
"""

import asyncio
import logging
from typing import Final

from moldau.client.errors import ClientError, TimedOutError, UnavailableError, UnreachableError
from moldau.model.errors import ConfigError
from moldau.model.topology import Endpoint, JoinReply, JoinRequest
from moldau.server.machine import Machine

log = logging.getLogger(__name__)

_CALL_SECONDS_MAX: Final = 5.0
"""A stop of the process may have to wait this long for the thread of the request."""
_PAUSE_SECONDS_MIN: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 2.0
_LOG_SECONDS: Final = 5.0


async def join_cluster(
    address: Endpoint, request: JoinRequest, machine: Machine, *, seconds_max: float
) -> JoinReply:
    """Join the cluster of the member at `address`. Raises ConfigError.

    Safe to repeat: the request identifies the data directory and the process.
    """
    member = machine.member(address, min(_CALL_SECONDS_MAX, seconds_max))
    deadline = machine.clock.monotonic() + seconds_max
    pause, log_at = _PAUSE_SECONDS_MIN, float("-inf")
    log.info("joining a cluster through %s", address)
    while True:
        try:
            reply = await member.join(request)
        except (UnreachableError, TimedOutError, UnavailableError) as error:
            now = machine.clock.monotonic()
            if now + pause > deadline:
                raise _timed_out(address, error, seconds_max) from None
            if now >= log_at:
                log_at = now + _LOG_SECONDS
                log.info("not joined yet, retrying for %.0f s: %s", deadline - now, error)
        except ClientError as error:
            raise _rejected(address, error) from None
        else:
            log.info("joined cluster %s as broker %d", reply.cluster_id, reply.broker_id)
            return reply
        # With jitter: all brokers of a cluster may join through the same member at once.
        await asyncio.sleep(pause * machine.rng.uniform(0.5, 1.0))
        pause = min(pause * 2, _PAUSE_SECONDS_MAX)


def _timed_out(address: Endpoint, error: ClientError, seconds_max: float) -> ConfigError:
    failure = ConfigError(
        f"cannot join a cluster through {address} (join_addr) within {seconds_max:g} s: {error}"
    )
    failure.hint = error.hint
    return failure


def _rejected(address: Endpoint, error: ClientError) -> ConfigError:
    failure = ConfigError(f"{address} (join_addr) rejected this broker: {error}")
    failure.hint = error.hint or "nothing was changed; fix the cause and start again"
    return failure
