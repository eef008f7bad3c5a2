"""The open SendBatch streams of one client: what no call uses at present is kept for the next.

They are closed soon: a broker closes an old connection only when its last stream has ended.
"""

import asyncio
import time
from typing import Final

from moldau.client.queue.channels import Channels
from moldau.client.queue.send_stream import SendStream

IDLE_SECONDS_MAX: Final = 5.0
AGE_SECONDS_MAX: Final = 60.0
IDLE_PER_ADDRESS_MAX: Final = 8


class SendStreams:
    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._idle: dict[str, list[SendStream]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def take(self, address: str) -> SendStream:
        """One that nobody else uses until `give_back`; a new one if there is none."""
        idle = self._idle.get(address, [])
        while idle:
            stream = idle.pop()
            # A broker that died since: only a new stream knows that nothing was sent.
            is_alive = self._channels.is_connected(address)
            if is_alive and stream.is_idle and not _is_old(stream):
                return stream
            stream.cancel()
        return SendStream(self._channels, address)

    def give_back(self, stream: SendStream) -> None:
        """It is kept if all that was sent has a response."""
        idle = self._idle.setdefault(stream.address, [])
        if not stream.is_idle or self._is_closed or len(idle) >= IDLE_PER_ADDRESS_MAX:
            stream.cancel()
            return
        idle.append(stream)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(IDLE_SECONDS_MAX, self._close_old)

    def close(self) -> None:
        self._is_closed = True
        self._close_old()

    def _close_old(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for address, streams in list(self._idle.items()):
            old = [each for each in streams if self._is_closed or _is_old(each)]
            for stream in old:
                streams.remove(stream)
                stream.cancel()
            if not streams:
                del self._idle[address]
        if self._idle:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(IDLE_SECONDS_MAX, self._close_old)


def _is_old(stream: SendStream) -> bool:
    now = time.monotonic()
    return now - stream.used_at > IDLE_SECONDS_MAX or now - stream.opened_at > AGE_SECONDS_MAX
