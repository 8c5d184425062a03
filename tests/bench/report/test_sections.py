"""What each section decides before it measures."""

import json
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from app.workers.numa import Slot
from bench.eval.journal import Journal
from bench.report import numa_binding, weight_types
from bench.report.concurrency import layouts, wait_for_workers
from bench.report.pace import Pace
from bench.report.response_times import fitting, percentile
from bench.report.section import NotMeasuredError, ReportOptions, Setup
from bench.report.sections import SECTIONS
from bench.report.subject import BYTES_PER_WEIGHT, Subject
from bench.serving import RunningService
from kernels import _native
from quant.errors import OutputError, QuantError
from quant.packed.packed_file import is_packed_model
from tests.kernels.tiny_model import LLAMA, write_random_model
from tests.quant.checkpoints import CONFIG, random_tensors, write_hf_folder

ONE = (Slot(0, tuple(range(4))),)
TWO = (*ONE, Slot(1, tuple(range(4, 8))))


def a_setup(tmp_path: Path, model: Path, nodes: tuple[Slot, ...] = ONE, **changed: Any) -> Setup:
    options = ReportOptions(model=model, out=tmp_path / "out", windows=1, threads=1, quick=True, **changed)
    subject = Subject.read(model, options.out / "models")
    journal = Journal("test", tmp_path / "parts")
    return Setup(
        options=options, subject=subject, nodes=nodes, journal=journal, pace=Pace.guessed(subject.weights),
        tell=lambda text: None,
    )  # fmt: skip


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_hf_folder(tmp_path / "a-checkpoint", random_tensors(CONFIG), dtype="bf16")


def test_a_grid_stays_within_the_context() -> None:
    assert fitting(8192, (32, 1024, 2048), (32, 256)) == ([32, 1024, 2048], [32, 256])
    assert fitting(2048, (32, 1024, 2048), (32, 256)) == ([32, 1024], [32, 256])
    assert fitting(128, (32, 1024), (32, 256)) == ([32], [32])
    assert fitting(64, (32, 1024), (32, 256)) == ([], [])


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert [percentile(values, percent) for percent in (50, 90, 99)] == [50.0, 90.0, 99.0]
    assert percentile([3.0], 99) == 3.0


def test_two_workers_have_half_of_one_node_or_a_node_each() -> None:
    one, half = layouts(ONE, 4)
    assert (one.workers, one.threads, one.cpus_per_worker) == (1, 4, None)
    assert (half.workers, half.threads, half.cpus_per_worker) == (2, 2, 2)
    _, each = layouts(TWO, 4)
    assert (each.workers, each.threads, each.cpus_per_worker) == (2, 4, None)
    assert [layout.workers for layout in layouts(ONE, 1)] == [1]
    assert half.worker_settings() == {"count": 2, "cpus_per_worker": 2}


class TwoWorkersLater(BaseHTTPRequestHandler):
    """A service whose workers come one after another."""

    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        body = json.dumps({"status": "ok", "workers": min(2, self.asked)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_a_service_is_measured_when_all_its_workers_are_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("bench.report.concurrency._POLL_S", 0.0)
    with HTTPServer(("127.0.0.1", 0), TwoWorkersLater) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        service = RunningService(0, server.server_port, None, tmp_path / "log", 0.0)
        wait_for_workers(service, 2)
        assert TwoWorkersLater.asked == 2
        monkeypatch.setattr("bench.report.concurrency._WORKERS_WAIT_S", 0.02)
        with pytest.raises(RuntimeError, match="2 of 3 workers"):
            wait_for_workers(service, 3)
        server.shutdown()
        thread.join()


def test_one_node_is_no_failure_but_a_reason(tmp_path: Path) -> None:
    folder = write_random_model(tmp_path / "tiny", LLAMA, "sym_int4")
    with pytest.raises(NotMeasuredError, match="one NUMA node"):
        numa_binding.measure(a_setup(tmp_path, folder, ONE))


def test_two_nodes_need_leave_to_bind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_random_model(tmp_path / "tiny", LLAMA, "sym_int4")
    monkeypatch.setattr(_native, "may_bind_memory", lambda: False)
    with pytest.raises(NotMeasuredError, match="set_mempolicy"):
        numa_binding.measure(a_setup(tmp_path, folder, TWO))


def test_every_section_says_about_how_long_it_takes(tmp_path: Path) -> None:
    folder = write_random_model(tmp_path / "tiny", LLAMA, "sym_int4")
    quick = a_setup(tmp_path, folder, TWO)
    whole = replace(quick, options=replace(quick.options, quick=False))
    for section in SECTIONS:
        assert 0 < section.expected_s(quick) <= section.expected_s(whole)


def test_a_checkpoint_is_measured_in_five_types_and_its_conversions_go(tmp_path: Path, checkpoint: Path) -> None:
    setup = a_setup(tmp_path, checkpoint)
    result = weight_types.measure(setup)
    assert setup.subject.is_checkpoint
    assert [row["qtype"] for row in result["rows"]] == [setup.subject.qtype, "int8", "sym_int4", "asym_int4", "lut4"]
    for row in result["rows"]:
        assert row["load_s"] > 0
        assert row["resident_bytes"] > row["file_bytes"] > 0
        assert "perplexity" not in row
    there = [path.name for path in (tmp_path / "out/models").iterdir() if is_packed_model(path)]
    assert there == [f"{checkpoint.name}-sym_int4"]
    assert "needs a text" in " ".join(weight_types.view(result).sentences)


def test_a_type_that_was_measured_is_not_measured_again(tmp_path: Path, checkpoint: Path) -> None:
    first = weight_types.measure(a_setup(tmp_path, checkpoint))
    assert weight_types.measure(a_setup(tmp_path, checkpoint)) == first


def test_a_converted_folder_has_its_own_type_alone_and_stays(tmp_path: Path) -> None:
    folder = write_random_model(tmp_path / "tiny", LLAMA, "int8")
    setup = a_setup(tmp_path, folder)
    assert [row["qtype"] for row in weight_types.measure(setup)["rows"]] == ["int8"]
    assert setup.subject.served() == folder
    setup.subject.remove("int8")
    assert is_packed_model(folder)


def test_a_type_larger_than_the_memory_is_a_row_with_the_reason(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.report.weight_types.available_memory_bytes", lambda: 1000)
    result = weight_types.measure(a_setup(tmp_path, checkpoint))
    assert all("of memory" in row["none"] for row in result["rows"])
    assert not (tmp_path / "out/models").exists()


def free_of(free_bytes: int) -> Callable[[Path], int]:
    return lambda out: free_bytes


def test_the_disk_is_checked_before_anything_is_written(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quant.files.free_space.free_bytes", free_of(1000))
    with pytest.raises(OutputError, match=r"are free; give --out a folder on a larger disk"):
        weight_types.measure(a_setup(tmp_path, checkpoint))
    assert not (tmp_path / "out/models").exists()


def test_keeping_all_conversions_needs_more_disk(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = Subject.read(checkpoint, tmp_path / "models")
    largest, served = subject.file_bytes("fp32"), subject.file_bytes("sym_int4")
    monkeypatch.setattr("quant.files.free_space.free_bytes", free_of((64 << 20) + largest + served))
    subject.check_disk(tuple(BYTES_PER_WEIGHT), keep=False)
    with pytest.raises(OutputError):
        subject.check_disk(tuple(BYTES_PER_WEIGHT), keep=True)


def test_random_weights_are_known_by_their_source(tmp_path: Path) -> None:
    from quant.conversion.synth import synth

    folder = tmp_path / "shape"
    synth("smollm2-135m", folder, progress=False)
    subject = Subject.read(folder, tmp_path)
    assert subject.is_random
    assert (subject.qtype, subject.is_checkpoint, subject.context_tokens) == ("sym_int4", False, 8192)


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(QuantError, match="no such file or folder"):
        Subject.read(tmp_path / "nothing", tmp_path)
