from pathlib import Path

import pytest

from app.workers.numa import (
    Slot,
    cpu_quota,
    numa_nodes,
    parse_cpu_list,
    spanning_slot,
    thread_places,
    worker_slots,
)

TWO_SOCKETS = [Slot(0, (0, 1, 2, 3)), Slot(1, (4, 5, 6, 7))]


def fake_sysfs(root: Path, nodes: dict[int, str], siblings: dict[int, str]) -> Path:
    for node, cpulist in nodes.items():
        (root / f"node/node{node}").mkdir(parents=True)
        (root / f"node/node{node}/cpulist").write_text(cpulist + "\n")
    for cpu, list_ in siblings.items():
        (root / f"cpu/cpu{cpu}/topology").mkdir(parents=True)
        (root / f"cpu/cpu{cpu}/topology/thread_siblings_list").write_text(list_ + "\n")
    return root


@pytest.mark.parametrize(("text", "cpus"), [("0-3,8,10-11\n", [0, 1, 2, 3, 8, 10, 11]), ("5", [5]), ("\n", [])])
def test_cpu_lists(text: str, cpus: list[int]) -> None:
    assert parse_cpu_list(text) == cpus


def test_nodes_have_one_cpu_of_each_allowed_core(tmp_path: Path) -> None:
    siblings = {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}
    sysfs = fake_sysfs(tmp_path, {0: "0-1,4-5", 1: "2-3,6-7", 10: "8"}, siblings)
    assert numa_nodes(range(8), sysfs) == [Slot(0, (0, 1)), Slot(1, (2, 3))]
    assert numa_nodes([1, 4, 6, 8], sysfs) == [Slot(0, (1, 4)), Slot(1, (6,)), Slot(10, (8,))]


def test_a_machine_without_numa_information_is_one_node(tmp_path: Path) -> None:
    assert numa_nodes([3, 1], tmp_path) == [Slot(0, (1, 3))]


def test_slots_stay_within_a_node() -> None:
    assert worker_slots(TWO_SOCKETS, None) == TWO_SOCKETS
    assert [slot.cpus for slot in worker_slots(TWO_SOCKETS, 3)] == [(0, 1, 2), (4, 5, 6)]
    assert [slot.cpus for slot in worker_slots(TWO_SOCKETS, 2)] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    with pytest.raises(ValueError, match=r"cpus_per_worker is 5, but the largest node has 4"):
        worker_slots(TWO_SOCKETS, 5)


def test_a_slot_of_all_nodes_and_its_threads_evenly_from_each() -> None:
    slot = spanning_slot([Slot(0, (0, 1, 2, 3)), Slot(2, (4, 5))])
    assert slot == Slot(0, (0, 1, 2, 3, 4, 5), (0, 0, 0, 0, 2, 2))
    assert thread_places(slot, 6) == (slot.cpus, slot.cpu_nodes)
    assert thread_places(slot, 3) == ((0, 1, 4), (0, 0, 2))
    assert thread_places(slot, 5) == ((0, 1, 2, 4, 5), (0, 0, 0, 2, 2))
    assert spanning_slot(TWO_SOCKETS[:1]) == TWO_SOCKETS[0]
    assert thread_places(TWO_SOCKETS[1], 2) == ((4, 5), ())


@pytest.mark.parametrize(
    ("text", "cpus"), [("max 100000", None), ("250000 100000", 2), ("50000 100000", 1), ("x", None)]
)
def test_quota(tmp_path: Path, text: str, cpus: int | None) -> None:
    limit = tmp_path / "cpu.max"
    assert cpu_quota(limit) is None
    limit.write_text(text)
    assert cpu_quota(limit) == cpus
