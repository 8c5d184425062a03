"""Where weights lie: the choice on pretended machines, and that a copy is the file."""

import re
from pathlib import Path

import numpy as np
import pytest

from kernels import _native
from kernels._native import testing
from tests.kernels.tiny_model import LARGER_LLAMA, Sequences, write_random_model

MIB = 1 << 20


class Machine:
    """/proc and /sys of a machine with 8 GiB available, on one node, in no cgroup of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bound_nodes: list[int] = []
        self.write("proc/meminfo", "MemTotal:  9000000 kB\nMemFree:  1 kB\nMemAvailable:  8388608 kB\n")
        self.write("proc/self/cgroup", "0::/\n")
        self.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
        self.write("sys/devices/system/node/has_memory", "0\n")

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def limit(self, bytes_: int, used: int, cached: int, cgroup: str = "/") -> None:
        self.write("proc/self/cgroup", f"12:devices:/other\n0::{cgroup}\n")
        folder = f"sys/fs/cgroup{cgroup.rstrip('/')}"
        self.write(f"{folder}/memory.max", f"{bytes_}\n")
        self.write(f"{folder}/memory.current", f"{used}\n")
        self.write(f"{folder}/memory.stat", f"anon 1\ninactive_file {cached // 2}\nactive_file {cached // 2}\n")

    def choose(self, wanted: str = "auto", file_mib: int = 4096, huge_mib: int = 0, other_mib: int = 1024) -> str:
        sizes = (file_mib * MIB, other_mib * MIB, huge_mib * MIB)
        return testing.choose_weight_memory(wanted, *sizes, self.bound_nodes, str(self.root))

    def require_copy(self, wanted: str = "auto", file_mib: int = 4096) -> str:
        return testing.require_weight_copy(wanted, file_mib * MIB, 1024 * MIB, 0, self.bound_nodes, str(self.root))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_mapped_is_mapped_whatever_there_is(machine: Machine) -> None:
    assert machine.choose("mapped") == "mapped"


def test_small_pages_are_copied_and_huge_ones_used_in_place(machine: Machine) -> None:
    assert machine.choose(huge_mib=0) == "huge_pages"
    assert machine.choose(huge_mib=3890) == "huge_pages"
    assert machine.choose(huge_mib=3892) == "mapped"
    assert machine.choose("huge_pages", huge_mib=4096) == "huge_pages"


def test_several_nodes_have_a_copy_each(machine: Machine) -> None:
    machine.write("sys/devices/system/node/has_memory", "0-1\n")
    assert machine.choose(huge_mib=4096) == "huge_pages"


def test_a_file_of_less_than_a_huge_page_is_mapped(machine: Machine) -> None:
    assert machine.choose(file_mib=1) == "mapped"
    assert machine.choose(file_mib=2) == "huge_pages"


@pytest.mark.parametrize("modes", ["always madvise [never]\n", ""])
def test_no_huge_pages(machine: Machine, modes: str) -> None:
    machine.write("sys/kernel/mm/transparent_hugepage/enabled", modes)
    assert machine.choose() == "mapped"
    with pytest.raises(ValueError, match=r"^weight_memory: no huge pages .* (is never|has no) ?"):
        machine.choose("huge_pages")


def test_weights_that_no_file_has_are_copied_or_refused(machine: Machine) -> None:
    for wanted in ("auto", "huge_pages"):
        assert machine.require_copy(wanted, file_mib=1) == machine.require_copy(wanted, file_mib=6912) == "huge_pages"
        with pytest.raises(ValueError, match=r"^weight_memory: no .* for the weights: .* need 8193 MiB"):
            machine.require_copy(wanted, file_mib=6913)
    with pytest.raises(ValueError, match=r"^weight_memory: mapped is for weights in a file"):
        machine.require_copy("mapped")


def test_weights_that_no_file_has_need_no_huge_pages(machine: Machine) -> None:
    machine.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")
    assert machine.require_copy() == "huge_pages"
    with pytest.raises(ValueError, match=r"is never$"):
        machine.require_copy("huge_pages")


def test_memory_for_weights_and_the_rest_decides(machine: Machine) -> None:
    assert machine.choose(file_mib=6912, other_mib=1024) == "huge_pages"  # and 256 MiB to spare: 8 GiB
    assert machine.choose(file_mib=6912, other_mib=1025) == "mapped"
    with pytest.raises(ValueError, match=r"need 8193 MiB, but 8192 MiB are available"):
        machine.choose("huge_pages", file_mib=6912, other_mib=1025)


@pytest.mark.parametrize("cgroup", ["/", "/system.slice/redoubt.service"])
def test_the_limit_of_the_cgroup_counts_without_its_page_cache(machine: Machine, cgroup: str) -> None:
    machine.limit(6000 * MIB, used=5000 * MIB, cached=4376 * MIB, cgroup=cgroup)
    assert machine.choose(file_mib=4096) == "huge_pages"
    machine.limit(6000 * MIB, used=5001 * MIB, cached=4376 * MIB, cgroup=cgroup)
    assert machine.choose(file_mib=4096) == "mapped"
    machine.limit(6000 * MIB, used=7000 * MIB, cached=0, cgroup=cgroup)
    assert machine.choose(file_mib=4096) == "mapped"
    machine.write(f"sys/fs/cgroup{cgroup.rstrip('/')}/memory.max", "max\n")
    assert machine.choose(file_mib=4096) == "huge_pages"


def test_a_worker_that_is_bound_to_a_node_has_what_is_free_there(machine: Machine) -> None:
    file_mib, other_mib = 3072, 768  # and 256 to spare
    meminfo = (
        "Node 1 MemTotal: 9 kB\nNode 1 MemFree: {} kB\nNode 1 Active(file): 1024 kB\nNode 1 Inactive(file): 1024 kB\n"
    )
    machine.bound_nodes = [1]
    assert machine.choose(file_mib=file_mib, other_mib=other_mib) == "huge_pages"  # nothing says
    machine.write("sys/devices/system/node/node1/meminfo", meminfo.format(4094 << 10))
    assert machine.choose(file_mib=file_mib, other_mib=other_mib) == "huge_pages"
    machine.write("sys/devices/system/node/node1/meminfo", meminfo.format(4093 << 10))
    assert machine.choose(file_mib=file_mib, other_mib=other_mib) == "mapped"
    machine.bound_nodes = []
    assert machine.choose(file_mib=file_mib, other_mib=other_mib) == "huge_pages"


def huge_pages_granted() -> bool:
    modes = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return modes.exists() and "[never]" not in modes.read_text()


@pytest.mark.skipif(not huge_pages_granted(), reason="this system grants no huge pages")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_copy_is_the_file_and_its_mapping_is_gone(tmp_path: Path, threads: int) -> None:
    folder = write_random_model(tmp_path / "model", LARGER_LLAMA)
    assert (folder / "model.safetensors").stat().st_size > 4 * MIB  # several pieces
    logits = {}
    for weight_memory in ("mapped", "huge_pages"):
        model = Sequences(folder, threads=threads, weight_memory=weight_memory)
        assert model.model.weight_memory == weight_memory
        maps = Path("/proc/self/maps").read_text()
        assert len(re.findall(f"{re.escape(str(folder))}/model", maps)) == (weight_memory == "mapped")
        logits[weight_memory] = model.logits({0: [1, 2, 3], 1: [4]})
        del model
    assert np.array_equal(logits["mapped"], logits["huge_pages"])


def test_a_tiny_model_is_mapped_by_itself(tmp_path: Path) -> None:
    model: _native.Model = Sequences(write_random_model(tmp_path / "model")).model
    assert model.weight_memory == "mapped"
