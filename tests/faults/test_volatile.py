"""The volatile cache undoes what was not flushed, in any part, and nothing that was."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
START = """
import json, os, random, sys
from pathlib import Path
from faults.storage.volatile import Cache
os.chdir(sys.argv[1])
Path("graves").mkdir()
cache = Cache(Path("graves").absolute())
cache.install()

def make(name):
    return os.open(name, os.O_RDWR | os.O_CREAT)

def sync_names():
    directory = os.open(".", os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)

"""
END = """
print(json.dumps(cache.cut(random.Random(sys.argv[2]))))
sys.stdout.flush()
os._exit(0)
"""


def cut(directory: Path, body: str, seed: int) -> dict[str, int]:
    """Run some file operations, then cut the power."""
    done = subprocess.run(
        [sys.executable, "-c", START + body + END, str(directory), str(seed)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=wait_seconds_max(),
        check=True,
    )
    told: dict[str, int] = json.loads(done.stdout)
    return told


SEEDS = range(6)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_flushed_stays_whatever_came_after(tmp_path: Path, seed: int) -> None:
    body = """
file = make("a")
os.pwrite(file, b"A" * 5000, 0)
os.fdatasync(file)
sync_names()
os.pwritev(file, [b"B" * 1000, b"C" * 9000], 3000)
os.ftruncate(file, 4000)
"""
    told = cut(tmp_path, body, seed)
    data = (tmp_path / "a").read_bytes()
    assert data[:3000] == b"A" * 3000
    assert set(data[3000:5000]) <= set(b"ABC\0")
    assert told["writes"] == 2
    assert told["sectors"] == 20


def test_seeds_keep_all_kinds_of_parts(tmp_path: Path) -> None:
    body = """
file = make("a")
sync_names()
os.fsync(file)
os.pwrite(file, b"x" * 51200, 0)
"""
    kept = set()
    for seed in (1, 2, 4, 13):
        (tmp_path / str(seed)).mkdir()
        told = cut(tmp_path / str(seed), body, seed)
        data = (tmp_path / str(seed) / "a").read_bytes()
        assert data.count(b"x" * 512) == told["sectors_kept"]
        kept.add(told["sectors_kept"])
    assert min(kept) == 0
    assert len(kept) == 4


def test_a_flush_covers_what_came_before_it_and_no_other_file(tmp_path: Path) -> None:
    body = """
one, two = make("one"), make("two")
sync_names()
for file in (one, two):
    os.pwrite(file, b"early" * 1000, 0)
os.fsync(one)
os.pwrite(one, b"late" * 1000, 5000)
"""
    undone = 0
    for seed in range(8):
        (tmp_path / str(seed)).mkdir()
        told = cut(tmp_path / str(seed), body, seed)
        assert told["writes"] == 2
        assert (tmp_path / str(seed) / "one").read_bytes()[:5000] == b"early" * 1000
        undone += (tmp_path / str(seed) / "two").read_bytes() != b"early" * 1000
    assert undone


def test_names_and_removals_hold_once_their_directory_is_flushed(tmp_path: Path) -> None:
    body = """
for name in ("old", "kept"):
    file = make(name)
    os.pwrite(file, b"content", 0)
    os.fsync(file)
sync_names()
os.unlink("kept")
sync_names()
os.unlink("old")
os.fsync(make("new"))
"""
    seen = set()
    for seed in range(12):
        (tmp_path / str(seed)).mkdir()
        told = cut(tmp_path / str(seed), body, seed)
        names = {path.name for path in (tmp_path / str(seed)).iterdir() if path.is_file()}
        assert "kept" not in names
        assert ("old" in names) == bool(told["names_back"])
        assert ("new" in names) == (not told["names_undone"])
        if "old" in names:
            assert (tmp_path / str(seed) / "old").read_bytes() == b"content"
        seen.add(("old" in names, "new" in names))
    assert (True, False) in seen
