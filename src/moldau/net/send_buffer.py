"""How much the kernel holds of what was sent to a client.

Linux lets the buffer grow to megabytes, which a distant client needs: as much is on its way as is
sent within a round trip. A near one gets the same bytes slower, and for more CPU
(docs/decisions/0085-near-clients-get-a-small-send-buffer.md).
"""

import contextlib
import socket
import struct
import sys
from typing import Final

NEAR_MICROSECONDS_MAX: Final = 250
SEND_BUFFER_BYTES: Final = 100 * 1024
"""Of which the kernel makes twice as many. In 250 µs each: 800 MB/s, more than such a link has."""
_TCP_INFO_BYTES: Final = 72
_ROUND_TRIP: Final = struct.Struct("=68xI")


def tune_send_buffer(sock: socket.socket) -> None:
    """Right after the handshake, of which the kernel knows how long a round trip took."""
    if sys.platform == "linux" and sock.family in (socket.AF_INET, socket.AF_INET6):
        # A socket that is not TCP, or was reset already: its first read or write says so.
        with contextlib.suppress(OSError):
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            if is_near(info):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)


def is_near(tcp_info: bytes) -> bool:
    """By the kernel's `struct tcp_info`; 0 is a round trip that was not measured."""
    if len(tcp_info) < _ROUND_TRIP.size:
        return False
    round_trip: int = _ROUND_TRIP.unpack_from(tcp_info)[0]
    return 0 < round_trip <= NEAR_MICROSECONDS_MAX
