"""Whatever arrives, the broker answers with an error or hangs up, serves others, keeps the data.

All tests of this file but those that need a broker of their own share one; the fixture `unharmed`
checks after each that it still serves, is the same process, and lost nothing.
"""

import gzip
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cramjam
import pytest
from chunks import joined
from crc32c import crc32c

from moldau.client.errors import ClientError, UnreachableError
from moldau.model.errors import ErrorCode
from moldau.records.batch import HEADER_BYTES
from moldau.records.compression import Codec
from moldau.records.record import build_batch
from moldau.testing.broker import Broker, BrokerFailedError
from moldau.testing.waiting import wait_seconds_max, wait_until
from moldau.wire.framing import frame_request
from moldau.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.wire.messages.metadata import MetadataRequest
from raw_client import RawClient, batch, produce_request, record

pytestmark = pytest.mark.system

LONG = 20_000
"""Names in one request: nearly as many as a broker decodes."""
BAD_NAMES = ["..", ".", "", "a/b", "../../etc/passwd", "x" * 300, "a b", "a\0b", "größe", "a:b"]


@pytest.fixture
def unharmed(broker: Broker, new_name: Callable[[str], str]) -> Iterator[None]:
    """Something is written before, and is there after; the broker is the same process."""
    pid, topic = broker.pid, new_name("before")
    with RawClient(broker.host, broker.port) as before:
        before.create_well(topic)
        before.produce_well(topic, b"kept")
        yield
        # A connection that did nothing wrong is not touched either.
        assert before.produce_well(topic, b"after") == 1
        assert [item.value for item in before.read_all(topic)] == [b"kept", b"after"]
    with RawClient(broker.host, broker.port) as after:
        assert len(after.read_all(topic)) == 2
    assert broker.pid == pid
    assert "Traceback" not in broker.output


def connect(broker: Broker) -> socket.socket:
    return socket.create_connection((broker.host, broker.port), wait_seconds_max())


def is_hung_up(opened: socket.socket) -> bool:
    """Whether the other side closes the connection, whatever it says before."""
    opened.settimeout(wait_seconds_max())
    try:
        while opened.recv(65536):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def header(key: int, version: int, *, flexible: bool = False) -> bytes:
    return struct.pack(">hhih", key, version, 1, 3) + b"bad" + (b"\0" if flexible else b"")


# -- frames


@pytest.mark.usefixtures("unharmed")
def test_garbage_closes_only_its_own_connection(broker: Broker) -> None:
    rng = random.Random(1)
    for size in (1, 3, 4, 5, 17, 1000, 100_000):
        with connect(broker) as opened:
            # A length that is no promise: negative, or more than the broker reads.
            opened.sendall(b"\xff" + rng.randbytes(size))
            opened.shutdown(socket.SHUT_WR)
            assert is_hung_up(opened)


@pytest.mark.usefixtures("unharmed")
def test_garbage_in_a_whole_frame_closes_only_its_own_connection(broker: Broker) -> None:
    rng = random.Random(2)
    for number in range(60):
        key, version = rng.randrange(0, 80), rng.randrange(0, 14)
        body = header(key, version) + rng.randbytes(rng.choice((0, 1, 10, 100, 5000)))
        with connect(broker) as opened:
            opened.sendall(framed(body))
            opened.shutdown(socket.SHUT_WR)
            assert is_hung_up(opened), f"number {number}, API {key} version {version}"


@pytest.mark.parametrize("length", [-1, 0, 104_857_601, 2**31 - 1])
@pytest.mark.usefixtures("unharmed")
def test_a_length_that_no_request_has_is_refused_unread(broker: Broker, length: int) -> None:
    with connect(broker) as opened:
        opened.sendall(struct.pack(">i", length))
        assert is_hung_up(opened)


@pytest.mark.usefixtures("unharmed")
def test_a_request_cut_off_at_any_byte_has_no_effect(
    broker: Broker, raw: RawClient, new_name: Callable[[str], str]
) -> None:
    topic = raw.create_well(new_name("topic"))
    request = produce_request(topic, batch([b"never"]))
    whole = joined(frame_request(request, 9, 1, "bad"))
    for end in range(0, len(whole), 3):
        with connect(broker) as opened:
            opened.sendall(whole[:end])
    # The same with a frame that ends there: what is missing is inside.
    for end in range(8, len(whole) - 4, 3):
        with connect(broker) as opened:
            opened.sendall(framed(whole[4 : 4 + end]))
            opened.shutdown(socket.SHUT_WR)
            assert is_hung_up(opened)
    assert raw.read_all(topic) == []


@pytest.mark.parametrize(
    ("key", "version"), [(9999, 0), (-1, 0), (0, 99), (0, 0), (1, -1), (3, 14), (71, 0)]
)
@pytest.mark.usefixtures("unharmed")
def test_an_unknown_api_or_version_closes_the_connection(
    broker: Broker, key: int, version: int
) -> None:
    with connect(broker) as opened:
        opened.sendall(framed(header(key, version) + bytes(20)))
        assert is_hung_up(opened)


@pytest.mark.usefixtures("unharmed")
def test_hostile_lengths_inside_valid_frames_allocate_nothing(broker: Broker) -> None:
    before = resident_bytes(broker)
    huge = b"\xff\xff\xff\xff\x07"  # a compact length of 2^31 - 2
    bodies = [
        header(3, 0) + struct.pack(">i", 2**31 - 1),
        header(3, 9, flexible=True) + huge,
        header(3, 1) + struct.pack(">ih", 1, 32767),
        header(0, 3) + struct.pack(">hhi", -1, 1, 1000) + struct.pack(">i", 2**31 - 1),
        header(0, 9, flexible=True) + b"\0" + struct.pack(">hi", 1, 1000) + huge,
        header(0, 3)
        + struct.pack(">hhii", -1, 1, 1000, 1)
        + struct.pack(">h", 1)
        + b"t"
        + struct.pack(">iii", 1, 0, 2**31 - 1),
        header(1, 4) + struct.pack(">iiiib", -1, 0, 1, 1, 0) + struct.pack(">i", 2**31 - 1),
        header(19, 5, flexible=True) + huge,
        header(8, 2) + struct.pack(">h", 1) + b"g" + struct.pack(">ihqi", 1, 0, -1, 2**31 - 1),
        header(3, 9, flexible=True)[:-1] + huge,
    ]
    for body in bodies:
        with connect(broker) as opened:
            opened.sendall(framed(body))
            opened.shutdown(socket.SHUT_WR)
            assert is_hung_up(opened)
    # Many empty elements in a frame of some megabytes: each would cost a hundred times its size.
    count = 5_000_000
    with connect(broker) as opened:
        opened.sendall(framed(header(3, 1) + struct.pack(">i", count) + bytes(2 * count)))
        opened.shutdown(socket.SHUT_WR)
        assert is_hung_up(opened)
    assert resident_bytes(broker) < before * 3 + (64 << 20)


@pytest.mark.usefixtures("unharmed")
def test_a_long_list_of_bad_names_delays_no_other_client(broker: Broker, raw: RawClient) -> None:
    # Others are answered in between, not after it. How the bytes come in may make one measurement
    # look otherwise, and not each of them.
    assert any(are_answered_in_between(broker, raw) for _ in range(5))


def are_answered_in_between(broker: Broker, raw: RawClient) -> bool:
    names = b"".join(struct.pack(">h", 6) + b"%05d/" % number for number in range(LONG))
    started = worked_ns(broker)
    with connect(broker) as opened:
        opened.sendall(framed(header(3, 1) + struct.pack(">i", LONG) + names))
        waits = []

        def is_answered() -> bool:
            # Without a pause between them, many times.
            for _ in range(1000):
                if readable(opened):
                    return True
                asked = worked_ns(broker)
                raw.metadata("other")
                waits.append(worked_ns(broker) - asked)
            return False

        wait_until(is_answered, "the long list is answered")
        whole = worked_ns(broker) - started
    return len(waits) > 5 and max(waits) < whole * 0.7


def worked_ns(broker: Broker) -> int:
    """How long its event loop was on a core: no matter how long it waited for one."""
    return int(Path(f"/proc/{broker.pid}/schedstat").read_text().split()[0])


def readable(opened: socket.socket) -> bool:
    return bool(select.select([opened], [], [], 0)[0])


def resident_bytes(broker: Broker) -> int:
    pages = int(Path(f"/proc/{broker.pid}/statm").read_text().split()[1])
    return pages * 4096


# -- batches


def damaged(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 0x40]) + data[position + 1 :]


@pytest.mark.usefixtures("unharmed")
def test_a_damaged_batch_is_corrupt_and_not_written(
    raw: RawClient, new_name: Callable[[str], str]
) -> None:
    topic = raw.create_well(new_name("topic"))
    good = batch([b"value"] * 3)
    # In the checksum, the attributes, the times, the count, the records.
    for position in (17, 22, 30, 60, HEADER_BYTES + 2, len(good) - 1):
        answer = raw.produce(topic, damaged(good, position))
        assert answer.error_code == ErrorCode.CORRUPT_MESSAGE, position
        assert answer.base_offset == -1
    assert raw.read_all(topic) == []
    assert raw.produce_well(topic, b"good") == 0


@pytest.mark.usefixtures("unharmed")
def test_batches_that_do_not_add_up_are_refused(
    raw: RawClient, new_name: Callable[[str], str]
) -> None:
    topic = raw.create_well(new_name("topic"))
    good = batch([b"value"])
    old_magic = good[:16] + b"\x01" + good[17:]
    for data in (b"", b"\0", good[:-1], good + b"\0", good[:HEADER_BYTES], old_magic, bytes(100)):
        assert raw.produce(topic, data).error_code in (
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.INVALID_RECORD,
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ), data
    assert raw.read_all(topic) == []


BOMB_BYTES = 400 << 20


def bomb(codec: Codec) -> bytes:
    """A batch with a valid checksum whose records are 400 MB of zeros."""
    chunk = bytes(BOMB_BYTES // 4)
    # Frames of all three codecs may follow each other.
    match codec:
        case Codec.GZIP:
            payload = gzip.compress(chunk, 9) * 4
        case Codec.LZ4:
            payload = bytes(cramjam.lz4.compress(chunk)) * 4
        case _:
            payload = bytes(cramjam.zstd.compress(chunk, 3)) * 4
    data = bytearray(build_batch([record(b"x")])[:HEADER_BYTES] + payload)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">h", data, 21, codec)
    struct.pack_into(">I", data, 17, crc32c(data[21:]))
    return bytes(data)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize(
    "configs", [{"compression_type": "uncompressed"}, {"cleanup_policy": "compact"}], ids=str
)
@pytest.mark.usefixtures("unharmed")
def test_a_decompression_bomb_is_refused_within_bounds(
    broker: Broker,
    raw: RawClient,
    new_name: Callable[[str], str],
    codec: Codec,
    configs: dict[str, Any],
) -> None:
    topic = raw.create_well(new_name("topic"), max_message_bytes="10000000", **configs)
    data = bomb(codec)
    assert len(data) < BOMB_BYTES // 50
    before = resident_bytes(broker)
    answer = raw.produce(topic, data)
    assert answer.error_code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)
    assert resident_bytes(broker) - before < BOMB_BYTES
    assert raw.read_all(topic) == []


# -- names


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.usefixtures("unharmed")
def test_a_bad_topic_name_is_refused_by_create_and_by_auto_creation(
    broker: Broker, raw: RawClient, name: str
) -> None:
    before = sorted(path.name for path in broker.data_dir.parent.iterdir())
    assert raw.create(name).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    asked = raw.metadata(name, creates=True)
    assert asked.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    produced = raw.produce(name, batch([b"x"]))
    assert produced.error_code in (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    )
    # Nothing was made beside the data directory.
    assert sorted(path.name for path in broker.data_dir.parent.iterdir()) == before


@pytest.mark.parametrize("name", ["..", "a/b", "x" * 300, ""])
@pytest.mark.usefixtures("unharmed")
def test_a_bad_topic_name_is_refused_by_the_command_line(broker: Broker, name: str) -> None:
    command = [sys.executable, "-m", "moldau", "topic", "create", name, "-b", broker.bootstrap]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=wait_seconds_max(), check=False
    )
    assert done.returncode != 0
    assert "error:" in done.stderr
    assert "Traceback" not in done.stderr


# -- places


def test_a_data_directory_in_use_is_refused(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path / "data") as first:
        with RawClient(first.host, first.port) as raw:
            raw.create_well("topic")
        second = Broker(data_dir=tmp_path / "data")
        second.output_path = tmp_path / "second.log"
        with pytest.raises(BrokerFailedError) as failure:
            second.start()
        assert str(tmp_path / "data") in str(failure.value)
        assert "in use" in str(failure.value)
        assert "Traceback" not in str(failure.value)
        with RawClient(first.host, first.port) as raw:
            assert raw.produce_well("topic", b"x") == 0


def test_a_data_directory_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    written = json.dumps({"format": 99, "written_by": "99.0.0"})
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data" / "format").write_text(written)
    with pytest.raises(BrokerFailedError) as failure:
        Broker(data_dir=tmp_path / "data").start()
    assert "install moldau 99.0.0 or newer" in str(failure.value)
    assert "Traceback" not in str(failure.value)
    assert (tmp_path / "data" / "format").read_text() == written
    assert {path.name for path in (tmp_path / "data").iterdir()} == {"format", "lock"}


def test_a_port_in_use_is_named(broker: Broker, tmp_path: Path) -> None:
    second = Broker(data_dir=tmp_path / "data", port=broker.port)
    with pytest.raises(BrokerFailedError) as failure:
        second.start()
    assert broker.bootstrap in str(failure.value)
    assert "in use" in str(failure.value)
    assert "Traceback" not in str(failure.value)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MB of its own, if we may mount one."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "moldau-test", str(mounted)]
    try:
        done = subprocess.run(
            mount, capture_output=True, text=True, timeout=wait_seconds_max(), check=False
        )
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    yield mounted
    subprocess.run(["umount", str(mounted)], check=True, timeout=wait_seconds_max())


@pytest.mark.parametrize(("reserve", "left"), [(16 << 20, 8 << 20), (0, 0)])
def test_a_full_disk_refuses_writes_serves_reads_and_heals_by_itself(
    small_disk: Path, reserve: int, left: int
) -> None:
    """With a reserve, and filled to the last byte without the broker's notice."""
    settings = {"LOG__DISK_RESERVE_BYTES": str(reserve), "LOG__SEGMENT_BYTES": str(4 << 20)}
    with Broker(data_dir=small_disk / "data", settings=settings) as broker:
        fill_and_free(broker, small_disk / "ballast", left)
        assert "Traceback" not in broker.output


def fill_and_free(broker: Broker, ballast: Path, left: int) -> None:
    with RawClient(broker.host, broker.port) as raw:
        raw.create_well("topic")
        raw.produce_well("topic", b"before")
        free = os.statvfs(ballast.parent)
        ballast.write_bytes(bytes(free.f_bavail * free.f_frsize - left))
        # Large ones, for what a log has laid out ahead may still be filled.
        large = b"x" * 300_000
        accepted = wait_for_code(raw, large, ErrorCode.KAFKA_STORAGE_ERROR)
        values = [item.value for item in raw.read_all("topic")]
        assert values == [b"before"] + [large] * accepted
        ballast.unlink()
        wait_for_code(raw, b"after", ErrorCode.NONE)
        values = [item.value for item in raw.read_all("topic")]
        assert values == [b"before"] + [large] * accepted + [b"after"]


def wait_for_code(raw: RawClient, value: bytes, code: ErrorCode) -> int:
    """Produce until that is the answer; how many were accepted before."""
    accepted = 0

    def is_answered() -> bool:
        nonlocal accepted
        answer = raw.produce("topic", batch([value]))
        if answer.error_code == code:
            return True
        assert answer.error_code in (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR)
        accepted += answer.error_code == ErrorCode.NONE
        return False

    wait_until(is_answered, f"the answer is {code.name}")
    return accepted


def test_below_the_disk_reserve_produce_gets_a_retryable_error(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with Broker(data_dir=data_dir) as broker, RawClient(broker.host, broker.port) as raw:
        raw.create_well("topic")
        raw.produce_well("topic", b"before")
    settings = {"LOG__DISK_RESERVE_BYTES": str(1 << 60)}
    with (
        Broker(data_dir=data_dir, settings=settings) as broker,
        RawClient(broker.host, broker.port) as raw,
    ):
        answer = raw.produce("topic", batch([b"refused"]))
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "full" in (answer.error_message or "")
        assert [item.value for item in raw.read_all("topic")] == [b"before"]
    with Broker(data_dir=data_dir) as broker, RawClient(broker.host, broker.port) as raw:
        assert raw.produce_well("topic", b"after") == 1


# -- connections


def test_slow_clients_with_large_promises_delay_no_other_client() -> None:
    settings = {
        "KAFKA__REQUEST_BYTES_MAX": str(8 << 20),
        "KAFKA__INFLIGHT_BYTES_PER_CONNECTION_MAX": str(8 << 20),
        "KAFKA__INFLIGHT_BYTES_MAX": str(16 << 20),
    }
    with Broker(settings=settings) as broker, RawClient(broker.host, broker.port) as raw:
        raw.create_well("topic")
        before = resident_bytes(broker)
        slow = [connect(broker) for _ in range(40)]
        for opened in slow:
            # The beginning of a request of 8 MB, of which the rest never comes: 320 MB in all.
            opened.sendall(struct.pack(">i", 8 << 20) + header(0, 9, flexible=True))
        for number, opened in enumerate(slow):
            assert raw.produce_well("topic", b"x") == number
            opened.sendall(b"\0")
        with RawClient(broker.host, broker.port) as other:
            assert len(other.read_all("topic")) == len(slow)
        assert resident_bytes(broker) < before + (64 << 20)
        for opened in slow:
            opened.close()
        assert raw.produce_well("topic", b"x" * 900_000) == len(slow)


def test_connections_above_the_cap_are_refused_and_the_others_served() -> None:
    with Broker(settings={"KAFKA__CONNECTIONS_PER_ADDRESS_MAX": "5"}) as broker:
        clients = [RawClient(broker.host, broker.port) for _ in range(5)]
        clients[0].create_well("topic")
        for client in clients:
            client.produce_well("topic", b"x")
        for _ in range(20):
            with connect(broker) as refused:
                assert is_hung_up(refused)
        clients.pop().close()

        def is_let_in() -> bool:
            with RawClient(broker.host, broker.port) as again:
                assert again.produce_well("topic", b"x") == 5
            return True

        wait_until(is_let_in, "there is room for another", ignoring=UnreachableError)
        for client in clients:
            client.produce_well("topic", b"x")
            client.close()


@pytest.mark.usefixtures("unharmed")
def test_connections_opened_and_dropped_leave_nothing_behind(broker: Broker) -> None:
    def open_files() -> int:
        return len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))

    before = open_files()
    metadata = joined(frame_request(MetadataRequest(topics=None), 9, 1, "bad"))
    for number in range(300):
        opened = connect(broker)
        if number % 3:
            opened.sendall(metadata)
        if number % 2:
            # A reset instead of a proper end.
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        opened.close()
    wait_until(lambda: open_files() <= before + 3, "sockets of dropped clients are closed")


@pytest.mark.usefixtures("unharmed")
def test_a_client_that_asks_and_never_reads_delays_no_other_client(
    broker: Broker, raw: RawClient, new_name: Callable[[str], str]
) -> None:
    topic = raw.create_well(new_name("topic"))
    for _ in range(10):
        raw.produce_well(topic, b"x" * 900_000)
    before = resident_bytes(broker)
    # A long name, so that the requests are more than the sockets can hold.
    name = "x" * 500
    with RawClient(broker.host, broker.port, client_id=name, timeout=1.0) as deaf:
        with pytest.raises(ClientError):
            post_until_stuck(deaf, topic)
        for number in range(20):
            assert raw.produce_well(topic, b"y") == 10 + number
        assert resident_bytes(broker) < before + (64 << 20)


def post_until_stuck(deaf: RawClient, topic: str) -> None:
    """Requests pile up in the sockets until the broker reads no more of them."""
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 24)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 24,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )
    for _ in range(200_000):
        deaf.post(request, 12)
