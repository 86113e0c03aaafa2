from pathlib import Path

import pytest

from octavo_engine import limits
from octavo_engine.errors import CannotStart
from octavo_engine.limits import CgroupFiles, cpu_limit, memory_limit
from octavo_wire.failures import Reason


@pytest.fixture(autouse=True)
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits.os, "sched_getaffinity", lambda _: set(range(64)))


def cgroup(tmp_path: Path, membership: str, files: dict[str, str]) -> CgroupFiles:
    (tmp_path / "membership").write_text(membership)
    for name, text in files.items():
        path = tmp_path / "mount" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return CgroupFiles(mount=tmp_path / "mount", membership=tmp_path / "membership")


def test_version_2_inside_a_container(tmp_path: Path) -> None:
    files = cgroup(tmp_path, "0::/\n", {"cpu.max": "150000 100000\n", "memory.max": "2147483648\n"})
    assert cpu_limit({}, files) == 1.5
    assert memory_limit({}, files) == 2 * 2**30


def test_version_2_the_tightest_group_on_the_way_to_the_root_wins(tmp_path: Path) -> None:
    files = cgroup(
        tmp_path,
        "0::/pods/one/engine\n",
        {
            "pods/one/engine/cpu.max": "max 100000\n",
            "pods/one/engine/memory.max": "max\n",
            "pods/one/cpu.max": "300000 100000\n",
            "pods/one/memory.max": "1000\n",
            "pods/cpu.max": "400000 100000\n",
            "pods/memory.max": "5000\n",
        },
    )
    assert cpu_limit({}, files) == 3.0
    assert memory_limit({}, files) == 1000


def test_version_1(tmp_path: Path) -> None:
    files = cgroup(
        tmp_path,
        "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n1:name=systemd:/x\n",
        {
            "cpu/docker/abc/cpu.cfs_quota_us": "50000\n",
            "cpu/docker/abc/cpu.cfs_period_us": "100000\n",
            "memory/docker/abc/memory.limit_in_bytes": "3000000\n",
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert cpu_limit({}, files) == 0.5
    assert memory_limit({}, files) == 3_000_000


def test_version_1_without_limits(tmp_path: Path) -> None:
    files = cgroup(
        tmp_path,
        "5:cpu,cpuacct:/\n4:memory:/\n",
        {
            "cpu/cpu.cfs_quota_us": "-1\n",
            "cpu/cpu.cfs_period_us": "100000\n",
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert cpu_limit({}, files) == 64
    assert memory_limit({}, files) is None


def test_no_cgroups_at_all(tmp_path: Path) -> None:
    files = CgroupFiles(mount=tmp_path / "none", membership=tmp_path / "none" / "cgroup")
    assert cpu_limit({}, files) == 64
    assert memory_limit({}, files) is None


def test_the_environment_counts_and_the_least_wins(tmp_path: Path) -> None:
    files = cgroup(tmp_path, "0::/\n", {"cpu.max": "150000 100000", "memory.max": "4000"})
    env = {"OCTAVO_CPU_LIMIT": "0.5", "OCTAVO_MEMORY_LIMIT_BYTES": "9000"}
    assert cpu_limit(env, files) == 0.5
    assert memory_limit(env, files) == 4000
    assert cpu_limit({"OCTAVO_CPU_LIMIT": "100"}, files) == 1.5


@pytest.mark.parametrize("text", ["two", "-1", "0", "nan", "inf"])
def test_a_wrong_environment_value_is_named(text: str, tmp_path: Path) -> None:
    files = cgroup(tmp_path, "0::/\n", {})
    with pytest.raises(CannotStart, match="OCTAVO_CPU_LIMIT") as caught:
        cpu_limit({"OCTAVO_CPU_LIMIT": text}, files)
    assert caught.value.failure.reason is Reason.INVALID_SETTING
    with pytest.raises(CannotStart, match="OCTAVO_MEMORY_LIMIT_BYTES"):
        memory_limit({"OCTAVO_MEMORY_LIMIT_BYTES": text}, files)


def test_kernel_tables(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 10 kB\nMemAvailable:   2048 kB\n")
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nGroups:\t \nVmRSS:\t   700 kB\nRssAnon:\t   512 kB\n")
    assert limits.available_memory(meminfo) == 2048 * 1024
    assert limits.resident_memory(status) == 512 * 1024
    status.write_text("VmRSS:\t   700 kB\n")  # some sandboxed kernels say no more
    assert limits.resident_memory(status) == 700 * 1024
    status.write_text("Name:\tpython\n")
    with pytest.raises(OSError, match="RssAnon"):
        limits.resident_memory(status)
