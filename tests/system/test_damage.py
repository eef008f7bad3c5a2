"""Damaged files: found, told, never served, never deleted; everything else goes on."""

import os
from pathlib import Path

import pytest

from moldau.model.errors import ErrorCode
from moldau.testing.broker import Broker, BrokerFailedError
from raw_client import RawClient

pytestmark = pytest.mark.system
VALUE = bytes(range(250))


def client(broker: Broker) -> RawClient:
    return RawClient(broker.host, broker.port, client_id="damage")


def fill(broker: Broker, topic: str, batches: int = 200) -> None:
    with client(broker) as raw:
        raw.create_well(topic, segment_bytes="16384")
        for number in range(batches):
            raw.produce_well(topic, b"%d" % number, VALUE)


def segments(data_dir: Path, topic: str) -> list[Path]:
    return sorted((data_dir / "topics" / topic).glob("*/0/*.log"))


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 1]))


def test_a_flipped_bit_in_a_closed_segment_is_found_on_reading_and_not_served(
    tmp_path: Path,
) -> None:
    broker = Broker(data_dir=tmp_path / "data")
    with broker:
        fill(broker, "hurt")
        fill(broker, "healthy", batches=10)
    victim = segments(tmp_path / "data", "hurt")[0]
    flip(victim, 6000)
    before = victim.read_bytes()
    with broker, client(broker) as raw:
        offset, error = 0, ErrorCode.NONE
        while error == ErrorCode.NONE and offset < 400:
            answer = raw.fetch("hurt", offset)
            error = ErrorCode(answer.error_code)
            if error == ErrorCode.NONE:
                offset += 2
        assert error == ErrorCode.KAFKA_STORAGE_ERROR
        again = raw.produce("hurt", b"x" * 100)
        assert again.error_code != ErrorCode.NONE
        assert len(raw.read_all("healthy")) == 20
        raw.produce_well("healthy", b"still here")
        assert raw.metadata("hurt").partitions[0].leader_id == -1
    assert "hurt" in broker.output
    assert str(victim.name) in broker.output
    assert victim.read_bytes() == before


def test_damage_in_flushed_bytes_takes_only_that_partition_offline_after_a_crash(
    tmp_path: Path,
) -> None:
    broker = Broker(data_dir=tmp_path / "data")
    broker.start()
    try:
        fill(broker, "hurt", batches=20)
        fill(broker, "healthy", batches=10)
    finally:
        broker.kill()
    victim = segments(tmp_path / "data", "hurt")[-1]
    data = victim.read_bytes()
    flip(victim, data.index(VALUE) + 10)
    damaged = victim.read_bytes()
    with broker, client(broker) as raw:
        assert raw.fetch("hurt", 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert len(raw.read_all("healthy")) == 20
    assert victim.read_bytes() == damaged


def test_a_missing_index_is_rebuilt(tmp_path: Path) -> None:
    broker = Broker(data_dir=tmp_path / "data")
    with broker:
        fill(broker, "t")
    for index in (tmp_path / "data" / "topics" / "t").glob("*/0/*.index"):
        index.unlink()
    with broker, client(broker) as raw:
        assert [record.offset for record in raw.read_all("t")] == list(range(400))


@pytest.mark.parametrize("name", ["votes", "broker.json"])
def test_a_damaged_journal_or_identity_stops_the_start_and_stays_as_it_is(
    tmp_path: Path, name: str
) -> None:
    broker = Broker(data_dir=tmp_path / "data")
    with broker:
        fill(broker, "t", batches=3)
    path = tmp_path / "data" / name
    path.write_bytes(os.urandom(len(path.read_bytes())))
    damaged = path.read_bytes()
    with pytest.raises(BrokerFailedError) as caught:
        broker.start()
    assert name in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert path.read_bytes() == damaged
