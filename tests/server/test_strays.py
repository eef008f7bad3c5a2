"""Logs that a crash left behind are set aside at the next start, and no others."""

from pathlib import Path

import pytest

from moldau.client.wire.client import KafkaClient
from moldau.testing.broker import Broker

pytestmark = pytest.mark.system


def test_an_unknown_log_is_set_aside_and_the_others_stay(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path / "data") as broker, KafkaClient(broker.bootstrap) as client:
        client.create_topic("kept", partitions=2)
    (kept,) = (tmp_path / "data" / "topics" / "kept").iterdir()
    unknown = tmp_path / "data" / "topics" / "gone" / ("0" * 31 + "7") / "0"
    # A topic that exists, and a partition that is not here.
    beyond = kept / "2"
    for stray in (unknown, beyond):
        stray.mkdir(parents=True)
        (stray / "note").write_text("left behind")
    with Broker(data_dir=tmp_path / "data") as broker:
        assert sorted(path.name for path in kept.iterdir()) == ["0", "1"]
        assert not unknown.exists()
        for moved in (f"strays/gone-{'0' * 31}7-0", f"strays/kept-{kept.name}-2"):
            assert f"moved it to {moved}" in broker.output
            assert (tmp_path / "data" / moved / "note").read_text() == "left behind"
