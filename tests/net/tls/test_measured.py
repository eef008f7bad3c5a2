"""What asyncio's TLS does in a handshake is measured, and uses the newest certificate."""

import ssl

import pytest
from tls_world import TlsWorld

from moldau.net.tls.measured import MeasuringContext

pytestmark = pytest.mark.inprocess


@pytest.fixture
def world(tmp_path) -> TlsWorld:
    return TlsWorld(tmp_path)


class Pair:
    """Both sides of a connection, in memory."""

    def __init__(self, server: ssl.SSLContext, client: ssl.SSLContext) -> None:
        up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server = server.wrap_bio(up, down, server_side=True)
        self.client = client.wrap_bio(down, up, server_hostname="localhost")

    def shake_hands(self) -> None:
        is_done = [False, False]
        while not all(is_done):
            for number, side in enumerate((self.client, self.server)):
                try:
                    side.do_handshake()
                    is_done[number] = True
                except ssl.SSLWantReadError:
                    pass


def test_each_step_is_measured_also_of_a_client_that_leaves(world):
    steps: list[float] = []
    context = MeasuringContext(lambda: tls.server, steps.append)
    tls = world.contexts()
    Pair(context, world.client()).shake_hands()
    complete = list(steps)
    assert len(complete) >= 2
    assert sum(complete) > 0
    left = Pair(context, world.client())
    for side in (left.client, left.server):
        with pytest.raises(ssl.SSLWantReadError):
            side.do_handshake()
    assert len(steps) == len(complete) + 1
    # The broker's signature: nearly all of it.
    assert steps[-1] > 0


def test_a_new_certificate_is_used_at_once(world):
    tls = world.contexts()
    context = MeasuringContext(lambda: tls.server, lambda _: None)
    found = []
    for _ in range(2):
        pair = Pair(context, world.client())
        pair.shake_hands()
        found.append(pair.client.getpeercert(binary_form=True))
        world.renew()
        assert tls.reload()
    assert found[0] != found[1]
