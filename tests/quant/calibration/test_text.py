import json
from pathlib import Path

import numpy as np
import pytest

from quant.calibration.text import SHIPPED, calibration_windows
from quant.errors import SourceError
from tests.quant.checkpoints import byte_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    write_settings(tmp_path)
    return tmp_path


def write_settings(folder: Path, **settings: object) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def decoded(windows: "np.ndarray[tuple[int, ...], np.dtype[np.int32]]") -> str:
    tokenizer = byte_tokenizer()
    return "|".join(tokenizer.decode(list(window), skip_special_tokens=False) for window in windows)


def test_what_ships_fills_the_windows_of_a_large_vocabulary(folder: Path) -> None:
    assert sum(path.stat().st_size for path in SHIPPED) > 300_000
    windows = calibration_windows(folder, None, windows=8, tokens=512)
    assert windows.shape == (8, 512)
    assert windows.dtype == np.int32
    assert np.array_equal(windows, calibration_windows(folder, None, windows=8, tokens=512))
    assert len(np.unique(windows)) > 60


def test_a_file_of_the_users(folder: Path) -> None:
    (folder / "text.txt").write_text("abcd" * 50)
    windows = calibration_windows(folder, folder / "text.txt", windows=100, tokens=32)
    assert windows.shape == (6, 32)
    assert set(decoded(windows)) == set("abcd|")


def test_documents_begin_with_the_first_token(folder: Path) -> None:
    write_settings(folder, bos_token={"content": "<|endoftext|>"}, add_bos_token=True)
    (folder / "text.txt").write_text("one\n\f\ntwo\n")
    windows = calibration_windows(folder, folder / "text.txt", windows=1, tokens=8)
    assert decoded(windows) == "<|endoftext|>one<|endoftext|>two"


def test_chats_are_put_into_the_models_template(folder: Path) -> None:
    write_settings(folder, chat_template="{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}")
    (folder / "text.txt").write_text("@user\nhi\nyou\n@assistant\nyes\n")
    whole = "[user] hi\nyou[assistant] yes"
    windows = calibration_windows(folder, folder / "text.txt", windows=1, tokens=len(whole))
    assert decoded(windows) == whole


@pytest.mark.parametrize("template", ["{% for", "{{ messages[9].x.y }}", "{{ raise_exception('no') }}", None])
def test_a_template_that_fails_leaves_the_words(folder: Path, template: str | None) -> None:
    write_settings(folder, chat_template=template)
    (folder / "text.txt").write_text("@user\nhi\n@assistant\nyes\n")
    assert decoded(calibration_windows(folder, folder / "text.txt", windows=1, tokens=7)) == "hi\n\nyes"


def test_bad_texts_are_refused_by_name(folder: Path) -> None:
    (folder / "short.txt").write_text("abc")
    with pytest.raises(SourceError, match=r"short\.txt: is 3 tokens long; calibration needs at least 8"):
        calibration_windows(folder, folder / "short.txt", windows=1, tokens=8)
    with pytest.raises(SourceError, match=r"none\.txt: can't be read"):
        calibration_windows(folder, folder / "none.txt", windows=1, tokens=8)
    (folder / "latin.txt").write_bytes(b"\xff\xfe\xfa" * 100)
    with pytest.raises(SourceError, match=r"latin\.txt: can't be read as UTF-8"):
        calibration_windows(folder, folder / "latin.txt", windows=1, tokens=8)
