"""The whole way from a name to a converted model, as a user goes it: told, fetched, converted, found again."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from huggingface_hub import constants
from typer.testing import CliRunner

from app.cli import cli
from app.commands import coming
from app.commands.pulling import Conversion, converted_into_store
from app.commands.serving import model_folders, ready
from app.launch.config_file import checked_config, load_config
from app.launch.overrides import Overrides
from app.models.hub import HubError, OfflineError
from app.models.store import Store, StoreError
from app.settings.knobs import SettingsError
from quant.errors import ResourceError, UnsupportedModelError
from quant.families.description import Dense, Encoder
from quant.packed.packed_file import PackedFile, is_packed_model
from tests.hub import Hub
from tests.quant.checkpoints import CONFIG, random_tensors, write_hf_folder
from tests.quant.encoder_checkpoints import write_encoder_folder

RTN = Conversion(method="rtn")
CONFIG_FILE = """
applications:
  - import_path: app.deploy:build
    args: {model: {name: "org/tiny:Q4_0"}, worker: {max_concurrent_requests: 16}}
"""


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def fetched_parts(hub: Hub, folder: Path) -> dict[str, int]:
    """How many bytes of each file were asked for at the first address."""
    parts = dict.fromkeys((path.name for path in folder.iterdir()), 0)
    for method, path, wanted in hub.asked:
        name = path.rpartition("/")[2]
        if method == "GET" and "/resolve/" in path and name in parts and wanted is not None:
            first, last = wanted.removeprefix("bytes=").split("-")
            parts[name] += int(last) - int(first) + 1
    return parts


def test_pull_says_what_comes_fetches_converts_and_is_found_again(hub: Hub, gguf_folder: Path, store: Path) -> None:
    commit = hub.add("org/tiny", gguf_folder).revisions["main"]
    status, out, told = run("pull", "org/tiny:q4_0")
    place = store / f"org--tiny--Q4_0@{commit[:12]}" / "auto" / "tiny-Q4_0"
    assert status == 0
    assert out.splitlines()[-1] == str(place)
    for line in (
        rf"org/tiny:q4_0, revision {commit[:12]}, licence: apache-2\.0",
        r"To fetch: 0 kB\. Converted: \d+ kB\. Free disk: .*",
        r"Memory to serve it: .* GB; this machine has .* GB, .* GB free\.",
        r"Expected here: [\d,]+ tokens/s for one answer; a prompt of 1,000 tokens is read in \d+ s\.",
        r"Converting by rtn takes a few seconds, .*",
    ):
        assert re.search(f"^{line}$", told, re.MULTILINE), told
    assert is_packed_model(place)
    assert {path.name for path in place.parents[1].iterdir()} == {"auto", "record.json", "lock"}
    assert {path for _, path, _ in hub.asked if "/storage/" not in path} == {
        "/api/models/org/tiny",
        f"/org/tiny/resolve/{commit}/tiny-Q4_0.gguf",
    }
    hub.asked.clear()
    assert run("pull", "org/tiny:Q4_0") == (0, f"{place}\n", "")
    assert ready("org/tiny") == place
    assert hub.asked == []


def test_a_folder_is_fetched_once_and_kept_if_wanted(hub: Hub, hf_folder: Path) -> None:
    hub.add("org/tiny", hf_folder)
    place = converted_into_store("org/tiny", RTN, keep_source=True)
    assert place.parent.name == "auto-rtn"
    assert place.name == "tiny"
    assert fetched_parts(hub, hf_folder) == {path.name: path.stat().st_size for path in hf_folder.iterdir()}
    source = place.parents[1] / "source"
    assert {path.name: path.read_bytes() for path in source.iterdir()} == {
        path.name: path.read_bytes() for path in hf_folder.iterdir()
    }


def test_an_encoder_comes_with_its_modules(hub: Hub, tmp_path: Path) -> None:
    folder = write_encoder_folder(tmp_path / "encoder")
    hub.add("org/encoder", folder)
    place = converted_into_store("org/encoder", Conversion())
    settings = json.loads((place / "config.json").read_text())["redoubt_encoder"]
    assert (settings["dimensions"], settings["max_tokens"], settings["prompts"]) == (16, 48, {"query": "q: "})
    decoder = PackedFile(place / "model.safetensors").decoder
    assert decoder.encoder == Encoder("first", normalized=True, dense=(Dense(16, 64, bias=False, activation="tanh"),))


def test_convert_takes_a_name_too(hub: Hub, gguf_folder: Path, store: Path, tmp_path: Path) -> None:
    hub.add("org/tiny", gguf_folder)
    assert run("convert", "org/tiny:Q8_0", str(tmp_path / "out"), "--qtype", "int8")[0] == 0
    assert is_packed_model(tmp_path / "out")
    assert Store(store).entries() == []
    hub.asked.clear()
    assert "exists already" in run("convert", "org/tiny:Q8_0", str(tmp_path / "out"))[2]
    assert hub.asked == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_same_command_goes_on_after_an_interruption(
    hub: Hub, gguf_folder: Path, store: Path, tmp_path: Path, number: signal.Signals
) -> None:
    hub.add("org/tiny", gguf_folder)
    hub.stalls = threading.Event()
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "app.cli", "pull", "org/tiny:Q8_0"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        until_s = time.monotonic() + 240
        while not (parts := list(store.glob("*/source/*.part"))) or not parts[0].stat().st_size:
            assert time.monotonic() < until_s
            time.sleep(0.02)
        process.send_signal(number)
        _, told = process.communicate()
    if number is signal.SIGINT:
        assert process.returncode == 130
        assert told.splitlines()[-1].startswith("redoubt: interrupted")
    hub.stalls.set()
    hub.stalls = None
    have = parts[0].stat().st_size
    assert not list(store.glob("*/auto/*"))
    hub.asked.clear()
    place = ready("org/tiny:Q8_0")
    assert is_packed_model(place)
    assert f"bytes={have}-" in str(hub.sent_bytes("tiny-Q8_0.gguf")[0])


def test_two_at_once_wait_for_each_other(
    hub: Hub, gguf_folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.models.hub._TIMEOUT_S", 240.0)  # who waits for the hub does not ask again
    hub.add("org/tiny", gguf_folder)
    hub.stalls = stalls = threading.Event()
    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(ready, "org/tiny:Q4_0")
        while not hub.sent_bytes("tiny-Q4_0.gguf"):
            time.sleep(0.01)
        other = threads.submit(ready, "org/tiny:Q4_0")
        told = ""
        while "Another process works on tiny-Q4_0" not in told:
            time.sleep(0.01)
            told += capfd.readouterr().err
        hub.stalls = None
        stalls.set()
        assert one.result() == other.result()
    begins = [wanted for _, path, wanted in hub.asked if path.endswith("tiny-Q4_0.gguf") and "/resolve/" in path]
    assert len(begins) == len(set(begins)) == 2  # of the file, and of its second half after the stall


def test_update_fetches_a_newer_revision_and_keeps_the_one_before(
    hub: Hub, gguf_folder: Path, hf_folder: Path, tmp_path: Path
) -> None:
    repo = hub.add("org/tiny", gguf_folder)
    first = ready("org/tiny:Q4_0")
    assert "is the newest revision already" in run("models", "update", "org/tiny:Q4_0")[1]
    before = repo.revisions["main"]
    repo.publish(_copied(gguf_folder, tmp_path / "newer"))
    assert ready("org/tiny:Q4_0") == first
    status, out, _ = run("models", "update", "org/tiny:Q4_0")
    newest = Path(out.splitlines()[-1])
    assert status == 0
    assert newest != first
    assert ready("org/tiny:Q4_0") == newest
    assert ready(f"org/tiny@{before}:Q4_0") == first
    assert run("models", "rm", f"org/tiny@{before[:12]}")[0] == 0
    assert not first.exists()
    assert ready("org/tiny") == newest


def test_another_branch_is_not_what_a_name_without_one_means(hub: Hub, gguf_folder: Path, tmp_path: Path) -> None:
    repo = hub.add("org/tiny", gguf_folder)
    other = repo.publish(_copied(gguf_folder, tmp_path / "branch"), "branch")
    branch = ready("org/tiny@branch:Q4_0")
    assert branch.parents[1].name.endswith(other[:12])
    main = ready("org/tiny:Q4_0")
    assert main != branch
    repo.revisions["main"] = other  # and now it is: found without the network once it was asked for
    converted_into_store("org/tiny:Q4_0", Conversion())
    hub.asked.clear()
    assert ready("org/tiny:Q4_0") in (main, branch)
    assert hub.asked == []


def _copied(folder: Path, place: Path) -> Path:
    place.mkdir()
    for path in folder.iterdir():
        (place / path.name).symlink_to(path)
    return place


def test_the_store_is_listed_and_emptied(hub: Hub, gguf_folder: Path, store: Path) -> None:
    hub.add("org/tiny", gguf_folder)
    assert "is empty: redoubt pull NAME" in " ".join(run("models")[1].split())  # a long path wraps the line
    ready("org/tiny:Q4_0")
    _, out, _ = run("models", "list")
    assert re.search(r"org/tiny:Q4_0 +[0-9a-f]{12} +auto +\d+ kB +apache-2\.0", out)
    assert run("models", "rm", "org/tiny")[0] == 0
    assert Store(store).entries() == []
    assert run("models", "rm", "org/tiny")[2].startswith("redoubt: org/tiny: is not in the store")


def test_what_another_process_works_on_is_not_removed(hub: Hub, gguf_folder: Path) -> None:
    from app.models.store import locked

    hub.add("org/tiny", gguf_folder)
    place = ready("org/tiny:Q4_0")
    with locked(Store.default().entries()[0], lambda text: None):
        assert "another process works on it" in run("models", "rm", "org/tiny")[2]
    assert place.exists()


def test_a_path_is_converted_into_the_store_and_again_when_it_changed(gguf_folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "mine.gguf"
    source.write_bytes((gguf_folder / "tiny-Q4_0.gguf").read_bytes())
    place = ready(str(source))
    assert place.name == "mine"
    assert ready(str(source)) == place
    assert ready(str(place)) == place
    os.utime(source, (1, 1))
    assert ready(str(source)) != place


def test_a_disk_that_is_too_small_is_said_before_the_weights_come(
    hub: Hub, hf_folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/tiny", hf_folder)
    monkeypatch.setattr(coming, "free_bytes", lambda place: 1 << 20)
    with pytest.raises(ResourceError, match=r"needs .* MB of disk at .*, and 1\.0 MB are free: REDOUBT_MODELS names"):
        converted_into_store("org/tiny", RTN)
    weights = [size for name, size in fetched_parts(hub, hf_folder).items() if name.endswith(".safetensors")]
    assert max(weights) <= 128 << 10 < min(path.stat().st_size for path in hf_folder.glob("*.safetensors"))


def test_a_disk_that_fills_is_one_line_and_gone_on_with(hub: Hub, gguf_folder: Path, store: Path) -> None:
    hub.add("org/tiny", gguf_folder)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(HubError, match=r"tiny-Q8_0\.gguf\.part: File too large: .* the same command goes on"):
            ready("org/tiny:Q8_0")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert is_packed_model(ready("org/tiny:Q8_0"))


def test_what_the_memory_never_holds_is_served_by_nobody(
    hub: Hub, gguf_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/tiny", gguf_folder)
    monkeypatch.setattr(coming, "machine_memory_bytes", lambda: 100_000)
    with pytest.raises(ResourceError, match=r"are more than this machine's 100 kB of memory"):
        ready("org/tiny:Q4_0")
    assert is_packed_model(ready("org/tiny:Q4_0", is_served=False))


def test_a_family_that_is_not_known_is_named_before_its_weights_come(hub: Hub, tmp_path: Path, store: Path) -> None:
    folder = write_hf_folder(tmp_path / "hf", random_tensors(CONFIG), {**CONFIG, "model_type": "mamba"})
    hub.add("org/other", folder)
    with pytest.raises(UnsupportedModelError, match="mamba"):
        ready("org/other")
    assert fetched_parts(hub, folder)["model.safetensors"] <= 128 << 10 < (folder / "model.safetensors").stat().st_size


def test_pickles_leave_nothing_behind(hub: Hub, tmp_path: Path, store: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "pytorch_model.bin").write_bytes(b"pickled")
    hub.add("org/pickled", tmp_path / "hf")
    with pytest.raises(HubError, match="has only pickled weights"):
        ready("org/pickled")
    assert Store(store).entries() == []
    assert hub.sent_bytes("pytorch_model.bin") == []


def test_a_store_of_another_version_is_one_line(store: Path) -> None:
    store.mkdir()
    (store / "layout").write_text("7\n")
    with pytest.raises(StoreError, match=r"another version of Redoubt wrote this store \(layout 7, this one has 1\)"):
        ready("org/tiny")


def test_a_damaged_record_is_one_line(store: Path) -> None:
    for content, reason in (("{}", "is no record of this version"), ("[", "is not JSON")):
        (store / "x").mkdir(parents=True, exist_ok=True)
        (store / "x" / "record.json").write_text(content)
        assert reason in run("models")[2]


def test_offline_a_model_is_the_stores_or_one_line(
    hub: Hub, gguf_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/tiny", gguf_folder)
    place = ready("org/tiny:Q4_0")
    hub.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert ready("org/tiny:Q4_0") == place
    with pytest.raises(OfflineError, match="redoubt pull org/tiny:Q8_0"):
        ready("org/tiny:Q8_0")
    assert hub.asked == []


def test_a_file_names_models_as_the_command_line_does(
    hub: Hub, gguf_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/tiny", gguf_folder)
    config = tmp_path / "serve.yaml"
    config.write_text(CONFIG_FILE)
    with pytest.raises(
        SettingsError, match=r"model\.name: org/tiny:Q4_0: is not in the store .*: redoubt pull org/tiny"
    ):
        load_config(config)
    assert hub.asked == []
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert model_folders([], config) == []
    assert "HF_TOKEN" not in os.environ
    model = load_config(config).application.args.model
    assert model.path == ready("org/tiny:Q4_0")
    assert model.name == "tiny-Q4_0"


@pytest.mark.parametrize("names", [["org/tiny:Q4_0"], []], ids=["named on the command line", "named by the file"])
def test_a_wrong_file_is_refused_before_a_model_is_fetched(
    names: list[str], hub: Hub, gguf_folder: Path, tmp_path: Path
) -> None:
    hub.add("org/tiny", gguf_folder)
    config = tmp_path / "serve.yaml"
    missing = f"redoubt: {config}: No such file or directory; name a model to serve"
    wrong = f"redoubt: {config}: http_options.prot: there is no such setting\n"
    for text, said in ((None, missing), (CONFIG_FILE + "http_options: {prot: 1}\n", wrong)):
        if text is not None:
            config.write_text(text)
        status, _, error = run("serve", *names, "--config", str(config))
        assert (status, error.startswith(said)) == (2, True), error
    assert hub.asked == []


def test_models_of_the_file_are_not_looked_up_where_others_are_named(
    hub: Hub, gguf_folder: Path, tmp_path: Path
) -> None:
    hub.add("org/tiny", gguf_folder)
    config = tmp_path / "serve.yaml"
    config.write_text(CONFIG_FILE)
    folders = model_folders(["org/tiny:Q8_0"], config)
    (application,) = checked_config(config, Overrides(model_folders=folders)).applications
    assert application.args.model.path == ready("org/tiny:Q8_0")


def test_serve_gets_the_folders_of_names(hub: Hub, gguf_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from app.launch import local

    hub.add("org/tiny", gguf_folder)
    seen = list[object]()

    def serve_local(config: Path, overrides: Overrides, **_: object) -> int:
        seen.extend(overrides.model_folders)
        return 0

    monkeypatch.setattr(local, "serve_local", serve_local)
    assert run("serve", "org/tiny:Q4_0", "--model", "org/tiny:Q8_0")[0] == 0
    assert seen == [ready("org/tiny:Q4_0"), ready("org/tiny:Q8_0")]


def test_the_catalogue_is_sorted_by_what_fits_and_its_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    from app.capacity.processors import table_machine
    from app.commands import plan_inputs

    monkeypatch.setattr(plan_inputs, "read_machine", lambda name, memory: table_machine("epyc-9354", 12 << 30))
    status, out, _ = run("models", "--for-this-machine")
    lines = [line for line in out.splitlines() if re.search(r"\d GB +[\d,.]+ ", line) or "does not fit" in line]
    fits = ["does not fit" not in line for line in lines]
    speeds = [float(re.findall(r"GB +([\d,.]+)", line)[0].replace(",", "")) for line in lines if "does not" not in line]
    assert status == 0
    assert fits == sorted(fits, reverse=True)
    assert speeds == sorted(speeds, reverse=True)
    assert 5 < fits.count(True) < len(fits) - 2
    assert lines[0].split()[0] == "smollm2-135m"
