"""Fetching from a hub that misbehaves: what comes is whole, checked and pinned, or one line says what to do."""

import logging
import random
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from app.models.hub import HubError, OfflineError, Repository, describe_repository, fetch, fetched_bytes
from app.models.names import HubName, read_name
from tests.hub import TOKEN, Hub

GGUF = "tiny-Q8_0.gguf"


def described(name: str) -> Repository:
    meant = read_name(name)
    assert isinstance(meant, HubName)
    return describe_repository(meant)


def test_a_cut_connection_is_gone_on_with(hub: Hub, gguf_folder: Path, tmp_path: Path) -> None:
    hub.add("org/tiny", gguf_folder)
    hub.cuts = [random.randrange(1, 20_000) for _ in range(3)]
    repository = described("org/tiny:Q8_0")
    cuts, came = list(hub.cuts), list[int]()
    fetch(repository, repository.ggufs(), tmp_path, came.append)
    content = (gguf_folder / GGUF).read_bytes()
    assert (tmp_path / GGUF).read_bytes() == content
    assert sum(came) == len(content)
    begins = [0, cuts[0], cuts[0] + cuts[1], sum(cuts)]
    assert hub.sent_bytes(GGUF)[::2] == [f"bytes={begin}-{len(content) - 1}" for begin in begins]


def test_a_connection_that_brings_nothing_ends_and_the_next_try_goes_on(
    hub: Hub, gguf_folder: Path, tmp_path: Path
) -> None:
    hub.add("org/tiny", gguf_folder)
    repository = described("org/tiny:Q8_0")
    hub.cuts = [5000, *[0] * 5]
    with pytest.raises(OfflineError, match="the same command goes on from here"):
        fetch(repository, repository.ggufs(), tmp_path)
    assert fetched_bytes(tmp_path, repository.ggufs()) == 5000
    assert not (tmp_path / GGUF).exists()
    hub.asked.clear()
    fetch(repository, repository.ggufs(), tmp_path)
    assert hub.sent_bytes(GGUF)[0] == f"bytes=5000-{(gguf_folder / GGUF).stat().st_size - 1}"
    assert (tmp_path / GGUF).read_bytes() == (gguf_folder / GGUF).read_bytes()


@pytest.mark.parametrize("file", [GGUF, "config.json"])
def test_a_wrong_digest_is_said_and_the_file_removed(
    hub: Hub, gguf_folder: Path, hf_folder: Path, tmp_path: Path, file: str
) -> None:
    hub.add("org/tiny", gguf_folder if file == GGUF else hf_folder)
    hub.wrong = {file}
    repository = described("org/tiny")
    with pytest.raises(HubError, match=f"{file} has the digest .* and not the hub's"):
        fetch(repository, [repository.file(file)], tmp_path)
    assert not list(tmp_path.glob(f"{file}*"))
    hub.wrong.clear()
    fetch(repository, [repository.file(file)], tmp_path)


def test_a_server_without_ranges_begins_again(
    hub: Hub, gguf_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/tiny", gguf_folder)
    repository = described("org/tiny:Q8_0")
    hub.ranges = False
    hub.cuts = [7000]
    came = list[int]()
    fetch(repository, repository.ggufs(), tmp_path, came.append)
    assert (tmp_path / GGUF).read_bytes() == (gguf_folder / GGUF).read_bytes()
    assert sum(came) == (gguf_folder / GGUF).stat().st_size


def test_a_revision_is_pinned_to_its_commit(hub: Hub, gguf_folder: Path, hf_folder: Path, tmp_path: Path) -> None:
    repo = hub.add("org/tiny", gguf_folder)
    first = described("org/tiny")
    repo.publish(hf_folder)
    fetch(first, first.ggufs(), tmp_path)
    assert f"/org/tiny/resolve/{first.commit}/tiny-Q4_0.gguf" in [path for _, path, _ in hub.asked]
    assert described("org/tiny").commit == repo.revisions["main"] != first.commit
    assert described(f"org/tiny@{first.commit}").commit == first.commit


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("org/none", "no such repository"),
        ("org/tiny@none", "has no revision none"),
        ("org/tiny:Q2_K", r"has no GGUF of the type Q2_K; its types: Q4_0, Q8_0\. Name one: org/tiny:TYPE"),
    ],
)
def test_what_is_not_there_is_named(hub: Hub, gguf_folder: Path, name: str, reason: str) -> None:
    hub.add("org/tiny", gguf_folder)
    with pytest.raises(HubError, match=reason):
        described(name).ggufs()


def test_a_gated_repository_says_what_to_do(
    hub: Hub, gguf_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/tiny", gguf_folder, gated=True)
    repository = described("org/tiny")
    assert repository.gated
    with pytest.raises(HubError, match=f"is gated: accept its licence at {hub.url}/org/tiny, then set HF_TOKEN"):
        fetch(repository, repository.ggufs(), tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    with pytest.raises(HubError, match="your token has no access yet"):
        fetch(repository, repository.ggufs(), tmp_path)


def test_a_token_goes_to_the_hub_alone_and_into_no_log(
    hub: Hub, gguf_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.add("org/tiny", gguf_folder, gated=True)
    Path(constants.HF_TOKEN_PATH).write_text(TOKEN)
    caplog.set_level(logging.DEBUG)
    hub.cuts = [100]
    repository = described("org/tiny")
    fetch(repository, repository.ggufs(), tmp_path)
    assert (tmp_path / "tiny-Q4_0.gguf").exists()
    assert hub.seen_at_storage == []
    assert TOKEN not in caplog.text + "".join(capfd.readouterr())


def test_offline_asks_nobody(hub: Hub, gguf_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/tiny", gguf_folder)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(OfflineError, match="HF_HUB_OFFLINE is set: where there is a network, redoubt pull org/tiny"):
        described("org/tiny")
    assert hub.asked == []


def test_no_network_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(OfflineError, match=r"127\.0\.0\.1:9 can't be reached"):
        described("org/tiny")
    huggingface_hub.close_session()


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (["config.json", "pytorch_model.bin"], "has only pickled weights"),
        (["adapter_config.json", "adapter_model.safetensors"], "is an adapter"),
        (["README.md"], "has neither model.safetensors nor a GGUF"),
    ],
)
def test_a_repository_without_readable_weights_is_refused(
    hub: Hub, tmp_path: Path, files: list[str], reason: str
) -> None:
    for file in files:
        (tmp_path / file).write_text("{}")
    hub.add("org/tiny", tmp_path)
    repository = described("org/tiny")
    assert repository.ggufs() == []
    with pytest.raises(HubError, match=reason):
        repository.weights([])


def test_nothing_but_json_and_templates_comes_with_safetensors(hub: Hub, hf_folder: Path, tmp_path: Path) -> None:
    for file in ("modeling_x.py", "pytorch_model.bin", "README.md", "a/config.json"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("{}")
    for path in hf_folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    hub.add("org/tiny", tmp_path)
    small = {file.name for file in described("org/tiny").small_files()}
    assert small == {path.name for path in hf_folder.iterdir()} - {
        path.name for path in hf_folder.glob("*.safetensors")
    }


def test_a_gguf_in_parts_is_all_its_parts(hub: Hub, tmp_path: Path) -> None:
    names = [f"big-Q4_K_M-0000{number}-of-00002.gguf" for number in (1, 2)]
    for name in (*names, "big-UD-Q6_K_XL.gguf"):
        (tmp_path / name).write_bytes(name.encode())
    hub.add("org/big", tmp_path)
    assert [file.name for file in described("org/big").ggufs()] == names
    assert [file.name for file in described("org/big:q6_k_xl").ggufs()] == ["big-UD-Q6_K_XL.gguf"]
    assert [file.name for file in described(f"org/big:{names[0]}").ggufs()] == [names[0]]
