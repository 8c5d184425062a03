from pathlib import Path

import pytest

from app.workers.machine_memory import NoRoomError, available_memory_bytes, check_room_beside, machine_memory_bytes

GB = 10**9


def test_what_is_left_of_a_containers_limit(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  9000 kB\nMemFree:  1 kB\nMemAvailable:  8000 kB\n")
    assert available_memory_bytes(meminfo, tmp_path) == 8000 << 10
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("4000000\n")
    of_files = "file 900000\nshmem 600000\nactive_file 200000\ninactive_file 100000\n"
    (tmp_path / "memory.stat").write_text(f"anon 1\n{of_files}")
    assert available_memory_bytes(meminfo, tmp_path) == 1_300_000  # pages of files are given back, shared memory is not
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory_bytes(meminfo, tmp_path) == 8000 << 10
    (tmp_path / "memory.max").write_text("90000000\n")
    assert available_memory_bytes(meminfo, tmp_path) == 8000 << 10
    assert available_memory_bytes() > 0


def test_a_containers_memory_is_its_limit(tmp_path: Path) -> None:
    machine = machine_memory_bytes(tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    assert machine_memory_bytes(tmp_path) == machine
    (tmp_path / "memory.max").write_text("1000000\n")
    assert machine_memory_bytes(tmp_path) == 1_000_000


def test_the_limits_of_the_own_cgroup_and_of_those_around_it_count(tmp_path: Path) -> None:
    own, meminfo, group = tmp_path / "own", tmp_path / "meminfo", tmp_path / "system.slice/redoubt.service"
    own.write_text("0::/system.slice/redoubt.service\n")
    meminfo.write_text("MemAvailable: 8000000 kB\n")
    group.mkdir(parents=True)
    for folder, limit in ((group, "5000000"), (group.parent, "4000000")):
        (folder / "memory.max").write_text(limit)
        (folder / "memory.current").write_text("1000000")
        (folder / "memory.stat").write_text("active_file 0\ninactive_file 500000\n")
    assert machine_memory_bytes(tmp_path, own) == 4_000_000
    assert available_memory_bytes(meminfo, tmp_path, own) == 3_500_000
    (group / "memory.max").write_text("2000000")
    assert machine_memory_bytes(tmp_path, own) == 2_000_000
    assert available_memory_bytes(meminfo, tmp_path, own) == 1_500_000


def test_a_second_worker_needs_weights_and_cache_once_more(tmp_path: Path) -> None:
    with (tmp_path / "model.safetensors").open("wb") as weights:
        weights.truncate(4 * GB)
    check_room_beside(tmp_path, 2 * GB, 7 * GB)
    with pytest.raises(NoRoomError, match=r"up to 6\.5 GB, and 6\.0 GB are left.*worker\.surge to false"):
        check_room_beside(tmp_path, 2 * GB, 6 * GB)
