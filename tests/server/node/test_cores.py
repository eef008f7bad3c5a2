"""How many cores a node may use."""

import os

import pytest

from moldau.server.node.cores import cpu_quota, usable_cores


@pytest.fixture
def groups(tmp_path):
    """The file system of control groups, with one group in another."""
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    (tmp_path / "of-process").write_text("0::/outer/inner\n")
    return tmp_path


def quota(groups):
    return cpu_quota(groups, groups / "of-process")


def test_without_a_quota_there_is_none(groups):
    assert quota(groups) is None
    (groups / "outer" / "cpu.max").write_text("max 100000\n")
    assert quota(groups) is None


def test_the_tightest_quota_counts_also_that_of_a_group_above(groups):
    (groups / "outer" / "cpu.max").write_text("150000 100000\n")
    assert quota(groups) == 1.5
    (groups / "outer" / "inner" / "cpu.max").write_text("300000 100000\n")
    assert quota(groups) == 1.5


def test_in_a_container_the_group_is_the_root_whatever_its_name_is_outside(groups):
    (groups / "of-process").write_text("0::/../../elsewhere\n")
    (groups / "cpu.max").write_text("200000 100000\n")
    assert quota(groups) == 2


def test_quotas_of_version_1_count(groups):
    (groups / "of-process").write_text("4:memory:/m\n3:cpu,cpuacct:/outer\n")
    group = groups / "cpu" / "outer"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text("-1\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    assert quota(groups) is None
    (group / "cpu.cfs_quota_us").write_text("250000\n")
    assert quota(groups) == 2.5


def test_a_file_that_cannot_be_read_is_no_quota(groups):
    (groups / "outer" / "cpu.max").write_text("nonsense\n")
    assert quota(groups) is None
    assert cpu_quota(groups, groups / "missing") is None


@pytest.mark.parametrize(
    ("affinity", "limit", "cores"),
    [(8, None, 8), (8, "250000", 2), (8, "50000", 1), (2, "800000", 2)],
)
def test_a_quota_counts_as_the_cores_that_it_fills(groups, monkeypatch, affinity, limit, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)), raising=False)
    if limit is not None:
        (groups / "outer" / "cpu.max").write_text(f"{limit} 100000\n")
    assert usable_cores(groups, groups / "of-process") == cores
