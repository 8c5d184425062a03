"""Where an image is written, and that no half of one opens."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from app.sealing import seal as seal_module
from app.sealing.image import SealedModelError
from app.sealing.keys import read_key_file
from app.sealing.seal import seal
from app.sealing.sealed_model import SealedModel
from tests.app.sealing.conftest import KEY, contents
from tests.app.test_cli import run


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Path]:
    """A block device of 32 MiB."""
    backing = tmp_path / "disk"
    with backing.open("wb") as file:
        file.truncate(32 << 20)
    attached = subprocess.run(["losetup", "--find", "--show", backing], capture_output=True, text=True, check=False)
    if attached.returncode != 0:
        pytest.skip(f"no loop devices here: {attached.stderr.strip()}")
    device = Path(attached.stdout.strip())
    yield device
    subprocess.run(["losetup", "--detach", device], check=True)


def test_a_block_device_is_overwritten(folder: Path, device: Path) -> None:
    for name in ("first", "second"):
        report = seal(folder, device, KEY, name=name, progress=False)
        assert report.on_device
        model = SealedModel(device, KEY)
        assert model.name == name
        assert contents(model, "model.safetensors") == (folder / "model.safetensors").read_bytes()


def test_a_device_that_is_too_small_keeps_what_it_has(folder: Path, device: Path, tmp_path: Path) -> None:
    larger = tmp_path / "larger"
    larger.mkdir()
    for path in folder.iterdir():
        if path.is_file():
            (larger / path.name).symlink_to(path)
    seal(folder, device, KEY, progress=False)
    with (larger / "more").open("wb") as file:
        file.truncate(32 << 20)
    with pytest.raises(SealedModelError, match=rf"^{device}: has 33554432 bytes, and the image needs \d+"):
        seal(larger, device, KEY, progress=False)
    assert SealedModel(device, KEY).name == "small"


def test_a_file_that_is_there_is_kept(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("mine")
    for place in (out, tmp_path):
        with pytest.raises(SealedModelError, match=f"^{place}: is there already; only a block device is overwritten"):
            seal(folder, place, KEY, progress=False)
    assert out.read_text() == "mine"


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    with pytest.raises(SealedModelError, match=rf"^{tmp_path}: .* it has no model\.safetensors\. Make one"):
        seal(tmp_path, tmp_path / "out", KEY, progress=False)
    with pytest.raises(SealedModelError, match="it is no folder"):
        seal(tmp_path / "nothing", tmp_path / "out", KEY, progress=False)


@pytest.mark.parametrize("change", [b"another", b"", b"longer than it was before"])
def test_a_file_that_changes_meanwhile_is_noticed(
    folder: Path, tmp_path: Path, change: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for path in ("config.json", "model.safetensors"):
        (model / path).write_bytes((folder / path).read_bytes())
    written = seal_module._write_chunks

    def changed(*arguments: object) -> None:
        (model / "config.json").write_bytes(change)
        written(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(seal_module, "_write_chunks", changed)
    with pytest.raises(SealedModelError, match=r"config\.json: changed while it was sealed"):
        seal(model, tmp_path / "out", KEY, progress=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"], "something is left"


def test_a_device_with_half_an_image_does_not_open(folder: Path, device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seal(folder, device, KEY, progress=False)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(seal_module, "_write_chunks", interrupted)
    with pytest.raises(KeyboardInterrupt):
        seal(folder, device, KEY, progress=False)
    with pytest.raises(SealedModelError, match="is no sealed model"):
        SealedModel(device, KEY)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SealedModelError("refused")])
def test_a_new_key_goes_with_the_model_that_was_not_sealed(
    error: BaseException, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seal_module, "seal", Mock(side_effect=error))
    new, old = tmp_path / "new", tmp_path / "old"
    old.write_bytes(KEY)
    assert run("seal", str(folder), str(tmp_path / "out"), "--key", str(new), "--new-key")[0] in (2, 130)
    assert run("seal", str(folder), str(tmp_path / "out"), "--key", str(old))[0] in (2, 130)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_the_command_makes_a_key_and_an_image(folder: Path, tmp_path: Path) -> None:
    out, key = tmp_path / "out", tmp_path / "key"
    status, said = run("seal", str(folder), str(out), "--key", str(key))
    assert (status, said) == (2, f"redoubt: {key}: No such file or directory; `redoubt seal --new-key` makes a key\n")
    status, said = run("seal", str(folder), str(out), "--key", str(key), "--new-key", "--name", "other")
    model = SealedModel(out, read_key_file(key))
    assert status == 0
    assert f"other: {out.stat().st_size / 1e6:.0f} MB in {out}; digest {model.digest}\n" in said
    assert model.name == "other"
    assert key.stat().st_mode & 0o777 == 0o600
    before = key.read_bytes()
    status, said = run("seal", str(folder), str(tmp_path / "again"), "--key", str(key), "--new-key")
    assert (status, key.read_bytes()) == (2, before)
    assert "is there already" in said
