"""The control journal is read as it was written; a torn end is left out, other damage reported."""

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from moldau.log.control_journal import ControlJournal
from moldau.log.interface import ControlEntry, ControlKind
from moldau.model.errors import CorruptionError
from moldau.model.ids import Epoch, Offset
from sim.simdisk import SimDisk

entries = st.builds(
    ControlEntry,
    st.integers(0, 2**31 - 1).map(Epoch),
    st.sampled_from(ControlKind),
    st.integers(0, 2**62).map(Offset),
    st.binary(max_size=60),
)


def journal_of(written: list[ControlEntry], first: int = 0) -> tuple[SimDisk, ControlJournal]:
    disk = SimDisk()
    disk.makedirs("log")
    journal = ControlJournal(disk, "log", 0)
    for ordinal, entry in enumerate(written, first):
        journal.append(ordinal, entry)
        journal.flush()
    return disk, journal


@given(st.lists(entries, min_size=1, max_size=6), st.integers(0, 2**40))
def test_entries_are_read_as_they_were_written(written: list[ControlEntry], first: int) -> None:
    disk, _ = journal_of(written, first)
    assert ControlJournal(disk, "log", 0).load() == (first, written)


@given(st.lists(entries, min_size=1, max_size=4), st.data())
def test_damage_loses_the_last_entry_or_is_reported(
    written: list[ControlEntry], data: st.DataObject
) -> None:
    disk, journal = journal_of(written)
    content = bytearray(disk.read(journal.path))
    place = data.draw(st.integers(0, len(content.rstrip(b"\0")) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    disk.replace(journal.path, bytes(content))
    with suppress(CorruptionError):
        _, found = ControlJournal(disk, "log", 0).load()
        assert found in (written[:-1], written)


@given(st.binary(max_size=100))
def test_other_bytes_are_no_entries(content: bytes) -> None:
    disk = SimDisk()
    disk.makedirs("log")
    disk.replace("log/control.journal", content)
    with suppress(CorruptionError):
        assert ControlJournal(disk, "log", 0).load()[1] == []
