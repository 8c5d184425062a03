import os
import sys
from pathlib import Path

import pytest

from app.workers.numa import Slot, numa_nodes
from bench.report.answers import bind_memory, cpu_list
from bench.report.placement import Ask, Placement, answers, command, on_one_node, three_ways
from kernels import _native
from tests.kernels.tiny_model import LLAMA, write_random_model

TWO = (Slot(0, (0, 1, 2, 3)), Slot(1, (8, 9, 10, 11)))


def test_the_three_ways_have_as_many_threads_and_differ_in_one_thing_each() -> None:
    near, far, spread = three_ways(TWO, 4)
    assert (near.cpus, near.memory_nodes) == ((0, 1, 2, 3), (0,))
    assert (far.cpus, far.memory_nodes) == ((0, 1, 2, 3), (1,))
    assert (spread.cpus, spread.memory_nodes) == ((0, 1, 8, 9), (0, 1))


def test_no_way_has_more_threads_than_a_node_has_cores() -> None:
    assert [len(way.cpus) for way in three_ways(TWO, 16)] == [4, 4, 4]
    uneven = (Slot(0, (0, 1, 2, 3)), Slot(2, (8,)))
    near, far, spread = three_ways(uneven, 4)
    assert (near.memory_nodes, far.memory_nodes, spread.memory_nodes) == ((0,), (2,), (0, 2))
    assert spread.cpus == (0, 1, 2, 8)


def test_one_node_has_no_three_ways() -> None:
    with pytest.raises(ValueError, match="one NUMA node"):
        three_ways(TWO[:1], 4)


def test_an_engine_alone_is_placed_as_a_worker() -> None:
    assert on_one_node(TWO, 2, may_bind=True) == Placement("one node", (0, 1), (0,))
    assert on_one_node(TWO, 2, may_bind=False).memory_nodes == ()


def test_the_command_line_has_cores_and_memory() -> None:
    model = Path("/models/a b")
    line = command(model, Placement("x", (0, 8), (0, 1)), weight_memory="huge_pages")
    assert line[:4] == [sys.executable, "-m", "bench.report.answers", "/models/a b"]
    assert line[4:] == ["--weight-memory", "huge_pages", "--cpus", "0,8", "--memory-nodes", "0,1"]
    assert "--memory-nodes" not in command(model, Placement("x", (0,), ()), weight_memory="auto")
    assert cpu_list("0,8") == (0, 8)


def test_memory_of_one_node_is_bound_and_of_several_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(_native, "bind_memory_to_node", calls.append)
    monkeypatch.setattr(_native, "interleave_memory", calls.append)
    for nodes in ((), (1,), (0, 1)):
        bind_memory(nodes)
    assert calls == [1, [0, 1]]


def test_a_process_answers_every_ask_in_every_round(tmp_path: Path) -> None:
    folder = write_random_model(tmp_path / "tiny", LLAMA, "sym_int4")
    nodes = numa_nodes(sorted(os.sched_getaffinity(0)))
    placement = on_one_node(nodes, 1, may_bind=_native.may_bind_memory())
    found = answers(folder, placement, [Ask(5, 4), Ask(20, 3)], repeats=2, weight_memory="huge_pages")
    assert [[len(times) for times in rounds] for rounds in found.times_s] == [[4, 4], [3, 3]]
    for rounds in found.times_s:
        for times in rounds:
            assert times[0] > 0
            assert list(times) == sorted(times)
    assert found.load_s > 0


def test_a_process_that_fails_is_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"ended with status 1: .*nothing"):
        answers(tmp_path / "nothing", Placement("x", (0,), ()), [Ask(1, 1)], repeats=1)
