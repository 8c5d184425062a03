"""What is sealed comes back, byte for byte; what is not what was sealed is refused with one clear line."""

import hashlib
import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from app.attestation.statement import model_digest
from app.messages.model_card import ModelCard
from app.model_folder import context_tokens, find_template, missing_file, read_json
from app.sealing.image import (
    CHUNK_BYTES,
    KEY_BYTES,
    PREFIX_BYTES,
    TAG_BYTES,
    Chunk,
    ChunkCipher,
    Header,
    SealedModelError,
    header_bytes,
)
from app.sealing.seal import seal
from app.sealing.sealed_model import SealedModel, is_sealed, model_identity, open_model
from tests.app.sealing.conftest import KEY, contents
from tests.kernels.tiny_model import LARGER_LLAMA, Sequences

SEALED_CHUNK = CHUNK_BYTES + TAG_BYTES


def test_every_file_comes_back(folder: Path, sealed: Path) -> None:
    model = SealedModel(sealed, KEY)
    files = [path for path in folder.iterdir() if path.is_file()]
    assert len(files) == 7
    for path in files:
        assert contents(model, path.name) == path.read_bytes()
    assert sorted(model.names) == sorted(path.name for path in files)


def test_it_says_its_name_and_its_digest(folder: Path, sealed: Path) -> None:
    model = SealedModel(sealed, KEY)
    assert (model.name, str(model)) == ("small", str(sealed))
    assert model.digest == model_digest(folder)


def test_nothing_of_it_is_readable_in_the_image(folder: Path, sealed: Path) -> None:
    image = sealed.read_bytes()
    assert b"config.json" not in image
    assert (folder / "config.json").read_bytes()[:40] not in image
    assert (folder / "model.safetensors").read_bytes()[:64] not in image


@given(data=st.data())
def test_every_range_comes_back(folder: Path, sealed: Path, data: st.DataObject) -> None:
    weights = (folder / "model.safetensors").read_bytes()
    near = st.integers(0, 3).flatmap(lambda i: st.integers(i * CHUNK_BYTES - 2, i * CHUNK_BYTES + 2))
    begin = min(max(data.draw(st.one_of(near, st.integers(0, len(weights)))), 0), len(weights))
    end = min(max(data.draw(st.one_of(near, st.integers(0, len(weights)))), begin), len(weights))
    part = bytearray(end - begin)
    SealedModel(sealed, KEY).read_into("model.safetensors", begin, memoryview(part))
    assert part == weights[begin:end]


def test_its_small_files_are_read_like_a_folders(folder: Path, sealed: Path) -> None:
    model = SealedModel(sealed, KEY)
    assert missing_file(model) is None
    assert read_json(model / "config.json") == read_json(folder / "config.json")
    assert read_json(model / "tokenizer_config.json", optional=True) == {}
    assert context_tokens(model, None) == LARGER_LLAMA["max_position_embeddings"]
    assert find_template(model, {}) == "{{ 'ä' }}"
    assert not (model / "tokenizer.json").is_file()
    with pytest.raises(FileNotFoundError):
        (model / "tokenizer.json").read_text("utf-8")
    with pytest.raises(SealedModelError, match=r"small\.sealed: holds no tokenizer\.json"):
        model.size("tokenizer.json")


@pytest.mark.parametrize("nodes", [[], [0, 0, 1]])
def test_it_runs_like_the_folder(folder: Path, sealed: Path, nodes: list[int]) -> None:
    prompts = {0: [1, 2, 3], 1: [4]}
    expected = Sequences(folder).logits(prompts)
    options: dict[str, Any] = {"threads": len(nodes) or 2, "nodes": nodes, "bind_weights": False}
    assert np.array_equal(Sequences(SealedModel(sealed, KEY), **options).logits(prompts), expected)


@pytest.fixture(scope="session")
def other(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Another image of the same model under the same key."""
    out = tmp_path_factory.mktemp("sealed again") / "small.sealed"
    seal(folder, out, KEY, progress=False)
    return out.read_bytes()


def chunks(image: bytes, name: str = "model.safetensors") -> list[Chunk]:
    """Where a file's chunks are."""
    beginning = image[: header_bytes(image)]
    header = Header.opened(KEY, beginning)
    size = next(file.size_bytes for file in header.files if file.name == name)
    return [chunk for chunk, _ in ChunkCipher(KEY, header, beginning).chunks_of(name, 0, size)]


def sealed_chunk(image: bytes, number: int, name: str = "model.safetensors") -> bytes:
    chunk = chunks(image, name)[number]
    return image[chunk.offset : chunk.offset + chunk.size_bytes + TAG_BYTES]


def with_chunk(image: bytes, number: int, sealed: bytes) -> bytes:
    """The image with other bytes in the place of a chunk of the weights."""
    offset = chunks(image)[number].offset
    return image[:offset] + sealed + image[offset + len(sealed) :]


def flipped(image: bytes, at: int) -> bytes:
    return image[:at] + bytes([image[at] ^ 1]) + image[at + 1 :]


def test_its_layout_is_as_documented(folder: Path, sealed: Path) -> None:
    image = sealed.read_bytes()
    magic, salt, length = struct.unpack_from(">16s32sI", image)
    assert magic == b"redoubt-sealed\0\1"

    def cipher(what: bytes) -> AESGCM:
        return AESGCM(HKDF(SHA256(), 32, salt, b"redoubt/sealed-model/v1 " + what).derive(KEY))

    beginning = image[: 52 + length]
    header = json.loads(cipher(b"header").decrypt(bytes(12), beginning[52:], beginning[:52]))
    assert header["name"] == "small"
    names = [file["name"] for file in header["files"]]
    assert names == sorted(path.name for path in folder.iterdir() if path.is_file())
    at, number, last = len(beginning), 0, sum(-(-file["size_bytes"] // (1 << 20)) for file in header["files"]) - 1
    for file in header["files"]:
        content = b""
        while (left := file["size_bytes"] - len(content)) > 0:
            chunk = image[at : at + min(left, 1 << 20) + 16]
            bound = hashlib.sha256(beginning).digest() + number.to_bytes(8, "big") + bytes([number == last])
            content += cipher(b"chunks").decrypt(number.to_bytes(12, "big"), chunk, bound)
            at, number = at + len(chunk), number + 1
        assert content == (folder / file["name"]).read_bytes()
        assert file["sha256"] == hashlib.sha256(content).hexdigest()
    assert (at, number) == (len(image), last + 1)


def test_two_images_of_a_model_share_no_chunk(sealed: Path, other: bytes) -> None:
    image = sealed.read_bytes()
    assert len(image) == len(other)
    numbers = range(len(chunks(image)))
    assert not {sealed_chunk(image, i) for i in numbers} & {sealed_chunk(other, i) for i in numbers}


CUT_OFF = "is cut off|does not open|is no sealed model"
CHUNK = "chunk [0-9]+ at byte [0-9]+ is not what was sealed there: seal the model again"
DAMAGES: dict[str, tuple[Callable[[bytes, bytes], bytes], str]] = {
    "its magic": (lambda image, _: flipped(image, 0), "is no sealed model"),
    "its version": (lambda image, _: flipped(image, 15), "is no sealed model"),
    "its salt": (lambda image, _: flipped(image, 16), "does not open"),
    "the header's length": (lambda image, _: flipped(image, PREFIX_BYTES - 1), "does not open"),
    "a length beyond all bounds": (lambda image, _: flipped(image, PREFIX_BYTES - 4), "header claims"),
    "its header": (lambda image, _: flipped(image, PREFIX_BYTES), "does not open"),
    "the header's tag": (lambda image, _: flipped(image, header_bytes(image) - 1), "does not open"),
    "a small file": (lambda image, _: flipped(image, header_bytes(image)), CHUNK),
    "a chunk": (lambda image, _: flipped(image, chunks(image)[3].offset + 1000), CHUNK),
    "a chunk's tag": (lambda image, _: flipped(image, chunks(image)[3].offset - 1), CHUNK),
    "the last byte": (lambda image, _: flipped(image, len(image) - 1), CHUNK),
    "empty": (lambda image, _: b"", CUT_OFF),
    "cut in the prefix": (lambda image, _: image[:20], CUT_OFF),
    "cut in the header": (lambda image, _: image[: PREFIX_BYTES + 5], CUT_OFF),
    "cut after the header": (lambda image, _: image[: header_bytes(image)], "is cut off"),
    "cut at a chunk": (lambda image, _: image[: chunks(image)[3].offset], "is cut off"),
    "cut by a byte": (lambda image, _: image[:-1], "is cut off"),
    "two chunks swapped": (
        lambda image, _: with_chunk(with_chunk(image, 1, sealed_chunk(image, 2)), 2, sealed_chunk(image, 1)),
        CHUNK,
    ),
    "a chunk twice": (lambda image, _: with_chunk(image, 2, sealed_chunk(image, 1)), CHUNK),
    "a chunk of another file": (lambda image, _: with_chunk(image, 1, sealed_chunk(image, 0, "whole_chunk")), CHUNK),
    "a chunk of another image": (lambda image, other: with_chunk(image, 1, sealed_chunk(other, 1)), CHUNK),
    "all chunks of another image": (
        lambda image, other: image[: header_bytes(image)] + other[header_bytes(other) :],
        CHUNK,
    ),
    "another salt": (lambda image, other: image[:16] + other[16:48] + image[48:], "does not open"),
    "zeros": (lambda image, _: with_chunk(image, 1, bytes(SEALED_CHUNK)), CHUNK),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_image_is_refused(sealed: Path, other: bytes, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "damaged"
    make, reason = DAMAGES[damage]
    path.write_bytes(make(sealed.read_bytes(), other))
    with pytest.raises(SealedModelError, match=f"^{path}: .*({reason})") as caught:
        read_everything(path)
    assert "\n" not in str(caught.value)


def read_everything(path: Path) -> None:
    model = SealedModel(path, KEY)
    for name in model.names:
        contents(model, name)


@pytest.mark.parametrize("number", [0, 3, -1])
@pytest.mark.parametrize("threads", [1, 3])
def test_no_engine_runs_with_a_damaged_chunk(sealed: Path, tmp_path: Path, number: int, threads: int) -> None:
    path = tmp_path / "damaged"
    image = sealed.read_bytes()
    path.write_bytes(flipped(image, chunks(image)[number].offset + 5))
    model = SealedModel(path, KEY)
    with pytest.raises(SealedModelError, match=f"^{path}: {CHUNK}$"):
        Sequences(model, threads=threads)


def test_an_image_that_shrinks_while_it_is_open_is_refused(sealed: Path, tmp_path: Path) -> None:
    path = tmp_path / "shrinking"
    path.write_bytes(sealed.read_bytes())
    model = SealedModel(path, KEY)
    with path.open("r+b") as file:
        file.truncate(chunks(path.read_bytes())[3].offset + 10)
    with pytest.raises(SealedModelError, match=f"^{path}: {CHUNK}$"):
        Sequences(model)


@pytest.mark.parametrize("key", [bytes(KEY_BYTES), KEY[::-1]])
def test_another_key_does_not_open_it(sealed: Path, key: bytes) -> None:
    with pytest.raises(SealedModelError, match=f"^{sealed}: this key does not open it: is it the model's"):
        SealedModel(sealed, key)


def test_what_is_no_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("x" * 100)
    for path, reason in (
        (tmp_path / "text", "is no sealed model"),
        (tmp_path / "nothing", "No such file"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(SealedModelError, match=f"^{path}: .*{reason}"):
            SealedModel(path, KEY)


@pytest.mark.parametrize("name", ["../config.json", "/etc/passwd", "..", ".", "", "a/b", "a\0b"])
def test_a_header_with_an_unsafe_name_is_refused(sealed: Path, name: str) -> None:
    entry = Header.opened(KEY, sealed.read_bytes()[: header_bytes(sealed.read_bytes())]).files[0]
    unsafe = Header.model_construct(name="small", files=[entry.model_copy(update={"name": name})])
    with pytest.raises(SealedModelError, match="is no file name"):
        Header.opened(KEY, unsafe.sealed(KEY, bytes(32)))
    twice = Header.model_construct(name="small", files=[entry, entry])
    with pytest.raises(SealedModelError, match=r"'chat_template\.jinja' twice"):
        Header.opened(KEY, twice.sealed(KEY, bytes(32)))


def test_what_follows_the_image_is_not_read(folder: Path, sealed: Path, tmp_path: Path) -> None:
    image = sealed.read_bytes()
    path = tmp_path / "larger"
    for tail in (bytes(3 * CHUNK_BYTES), image, image[chunks(image)[-1].offset :]):
        path.write_bytes(image + tail)
        model = SealedModel(path, KEY)
        assert model.digest == model_digest(folder)
        read_everything(path)


@pytest.fixture
def card(folder: Path, sealed: Path, tmp_path: Path) -> ModelCard:
    """How a worker describes the sealed model."""
    key = tmp_path / "the key"
    key.write_bytes(KEY)
    return ModelCard("small", str(sealed), None, "refuse", f"file://{tmp_path}/the%20key", model_digest(folder))


def test_a_card_opens_the_model_that_it_describes(folder: Path, card: ModelCard) -> None:
    opened = open_model(card)
    assert isinstance(opened, SealedModel)
    assert opened.digest == card.sha256
    assert open_model(replace(card, path=str(folder), key=None, sha256=None)) == folder


def test_another_model_under_the_same_key_is_refused(card: ModelCard) -> None:
    with pytest.raises(SealedModelError, match=r"sealed under the name 'small', and model\.served_name is 'large'"):
        open_model(replace(card, name="large"))
    with pytest.raises(SealedModelError, match=f"its digest is {card.sha256}, not model.sha256, 0000"):
        open_model(replace(card, sha256="0" * 64))


def test_an_identity_is_that_of_the_files(folder: Path, card: ModelCard, tmp_path: Path) -> None:
    opened = open_model(card)
    assert model_identity(opened) == model_digest(folder)[:16]
    copy = tmp_path / "elsewhere"
    shutil.copytree(folder, copy)
    identity = model_identity(copy)
    assert len(identity) == 16
    assert identity == model_identity(folder)
    (copy / "README.md").write_text("of no account")
    assert model_identity(copy) == identity
    seen = {identity}
    for name in ("config.json", "tokenizer.json", "generation_config.json", "chat_template.jinja"):
        (copy / name).write_text("{}" if name.endswith("jinja") else '{"other": 1}')
        seen.add(model_identity(copy))
    weights = bytearray((copy / "model.safetensors").read_bytes())
    for place in (20, len(weights) - 1):
        weights[place] ^= 1
        (copy / "model.safetensors").write_bytes(weights)
        seen.add(model_identity(copy))
    (copy / "model.safetensors").write_bytes(bytes(1 << 20))
    assert model_identity(copy) != model_identity(folder)
    (copy / "model.safetensors").unlink()
    seen.add(model_identity(copy))
    assert len(seen) == 8


def test_an_image_is_known_by_its_beginning(folder: Path, sealed: Path) -> None:
    assert is_sealed(sealed)
    assert not is_sealed(folder / "config.json")
