import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Metaspace
from tokenizers.trainers import BpeTrainer

from quant.errors import SourceError, UnsupportedModelError
from quant.sources.gguf_file import GgufFile, read_gguf
from quant.sources.gguf_tokenizer import merges_from_scores, write_gguf_tokenizer
from tests.quant.checkpoints import CONFIG, add_metadata, finish
from tests.quant.sources.corpus import TEXTS, random_texts

ALL_TEXTS = [*TEXTS, *random_texts(500)]


def vocabulary_file(
    path: Path, metadata: dict[str, Any], arch: str = "llama", general: Mapping[str, Any] | None = None
) -> Path:
    """A GGUF with a tokenizer and no tensors; transformers needs the sizes too."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(CONFIG["max_position_embeddings"])
    writer.add_embedding_length(CONFIG["hidden_size"])
    writer.add_block_count(CONFIG["num_hidden_layers"])
    writer.add_feed_forward_length(CONFIG["intermediate_size"])
    writer.add_head_count(CONFIG["num_attention_heads"])
    writer.add_layer_norm_rms_eps(CONFIG["rms_norm_eps"])
    add_metadata(writer, {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None})
    add_metadata(writer, dict(general or {}))
    finish(writer)
    return path


def converted(gguf_file: GgufFile, folder: Path, vocab_size: int = 1 << 20) -> Tokenizer:
    folder.mkdir(exist_ok=True)
    write_gguf_tokenizer(gguf_file, folder, {"max_position_embeddings": 512, "vocab_size": vocab_size})
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def transformers_tokenizer(path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def assert_same(ours: Tokenizer, theirs: Any, texts: Sequence[str]) -> None:
    for text in texts:
        ids = ours.encode(text).ids
        assert ids == theirs.encode(text), repr(text)
        assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids), repr(text)


def embedded_vocabulary(embedded_gguf: Path) -> dict[str, Any]:
    metadata = read_gguf(embedded_gguf).metadata
    keys = ("tokens", "token_type", "merges", "bos_token_id", "eos_token_id", "unknown_token_id")
    vocabulary = {key: metadata[f"tokenizer.ggml.{key}"] for key in keys}
    vocabulary["token_type"] = vocabulary["token_type"].tolist()
    return vocabulary | {"model": "gpt2"}


@pytest.mark.parity
def test_the_embedded_model_encodes_like_transformers(
    embedded_gguf: Path, embedded_tokenizer: Any, tmp_path: Path
) -> None:
    from tokenizers import pre_tokenizers

    ours = converted(read_gguf(embedded_gguf), tmp_path)
    theirs = copy.deepcopy(embedded_tokenizer)
    # As is, except for blanks before numerals, where it lacks the cut of the model's own tokenizer.json ...
    unaffected = [text for text in ALL_TEXTS if not any(c.isnumeric() for c in text)]
    assert len(unaffected) > 30
    assert_same(ours, theirs, unaffected)
    # ... and everywhere, with that cut.
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    assert_same(ours, theirs, ALL_TEXTS)


@pytest.mark.parity
@pytest.mark.parametrize("pre", ["llama-bpe", "tekken"])
def test_other_cuts_encode_like_transformers(embedded_gguf: Path, tmp_path: Path, pre: str) -> None:
    from transformers.integrations import gguf as integration

    metadata = embedded_vocabulary(embedded_gguf) | {"pre": pre, "add_bos_token": False}
    path = vocabulary_file(tmp_path / "x.gguf", metadata)
    ours = converted(read_gguf(path), tmp_path / "out")
    architecture, description, _ = integration.get_gguf_tokenizer(str(path))  # type: ignore[attr-defined]
    theirs, _ = integration.convert_gguf_tokenizer(architecture, description)  # type: ignore[attr-defined]
    for text in ALL_TEXTS:
        assert ours.encode(text).ids == theirs.encode(text).ids, repr(text)


@pytest.mark.parity
def test_qwen2_encodes_like_transformers_own_class(embedded_gguf: Path, tmp_path: Path) -> None:
    from transformers import AddedToken, Qwen2Tokenizer

    metadata = embedded_vocabulary(embedded_gguf)
    path = vocabulary_file(tmp_path / "x.gguf", metadata | {"pre": "qwen2"}, "qwen2")
    vocab = {token: i for i, token in enumerate(metadata["tokens"])}
    merges: list[Any] = [tuple(merge.split(" ")) for merge in metadata["merges"]]
    theirs = Qwen2Tokenizer(vocab=vocab, merges=merges)
    special = [token for token, kind in zip(metadata["tokens"], metadata["token_type"], strict=True) if kind == 3]
    theirs.add_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    assert_same(converted(read_gguf(path), tmp_path / "out"), theirs, ALL_TEXTS)


def sentencepiece_vocabulary() -> dict[str, Any]:
    """A BPE vocabulary as SentencePiece stores it: bytes, pieces that score worse the later they were learned."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = Metaspace(prepend_scheme="always")
    corpus = [text for text in TEXTS if text.isprintable() and "<" not in text] * 3
    tokenizer.train_from_iterator(corpus, BpeTrainer(vocab_size=800, show_progress=False))
    learned = sorted(tokenizer.get_vocab().items(), key=lambda item: (len(item[0]) == 1, item[1]))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *(token for token, _ in learned)]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(learned))]
    kinds = [2, 3, 3] + [6] * 256 + [1] * len(learned)
    return {
        "model": "llama",
        "tokens": tokens,
        "scores": scores,
        "token_type": kinds,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }


@pytest.mark.parity
def test_sentencepiece_encodes_like_transformers(tmp_path: Path) -> None:
    path = vocabulary_file(tmp_path / "x.gguf", sentencepiece_vocabulary())
    ours = converted(read_gguf(path), tmp_path / "out")
    theirs = transformers_tokenizer(path)
    assert ours.encode("Hello").ids[0] == 1
    # transformers' import puts a space before the first section alone, and not where there is one; llama.cpp does.
    assert_same(ours, theirs, [text for text in ALL_TEXTS if not text.startswith((" ", "▁")) and "<s>" not in text])


def test_gemma4_encodes_by_its_own_merges(tmp_path: Path) -> None:
    """The same vocabulary, with merges in the file: one that would make a control token is left out."""
    vocabulary = sentencepiece_vocabulary() | {"add_space_prefix": False, "add_bos_token": True}
    path = vocabulary_file(tmp_path / "llama.gguf", vocabulary)
    converted(read_gguf(path), tmp_path / "llama")
    merges = json.loads((tmp_path / "llama/tokenizer.json").read_text())["model"]["merges"]
    spoken = [" ".join(merge) for merge in merges]
    assert spoken
    own = {**{key: value for key, value in vocabulary.items() if key != "scores"}, "model": "gemma4"}
    control = vocabulary["tokens"][1]
    path = vocabulary_file(tmp_path / "gemma4.gguf", {**own, "merges": [f"{control[:1]} {control[1:]}", *spoken]})
    converted(read_gguf(path), tmp_path / "gemma4")
    ours, theirs = (json.loads((tmp_path / each / "tokenizer.json").read_text()) for each in ("gemma4", "llama"))
    assert ours == theirs


def test_sentencepiece_falls_back_to_bytes_and_back(tmp_path: Path) -> None:
    path = vocabulary_file(tmp_path / "x.gguf", sentencepiece_vocabulary())
    ours = converted(read_gguf(path), tmp_path / "out")
    for text in ("Hello, world!", "never seen: ₿ 𓀀\x07", " leading", "a  b"):
        assert ours.decode(ours.encode(text).ids) == text
    assert "<0xE2>" in ours.encode("₿").tokens


def test_sentencepiece_puts_a_space_before_each_section_between_special_tokens(tmp_path: Path) -> None:
    ours = converted(read_gguf(vocabulary_file(tmp_path / "x.gguf", sentencepiece_vocabulary())), tmp_path / "out")
    hello = ours.encode("Hello", add_special_tokens=False)
    assert hello.tokens[0].startswith("▁")
    assert ours.encode("Hello</s>Hello", add_special_tokens=False).ids == [*hello.ids, 2, *hello.ids]
    spaced = "".join(ours.encode(" Hello</s> Hello", add_special_tokens=False).tokens)
    assert spaced == "▁▁Hello</s>▁▁Hello"


def test_special_tokens_of_phi3_take_the_white_space_behind_them(tmp_path: Path) -> None:
    vocabulary = sentencepiece_vocabulary()
    for name in ("<|end|>", "<|endoftext|>"):
        vocabulary["tokens"].append(name)
        vocabulary["scores"].append(0.0)
        vocabulary["token_type"].append(3)
    for arch, space in (("phi3", ""), ("llama", " \n")):
        path = vocabulary_file(tmp_path / f"{arch}.gguf", vocabulary, arch)
        ours = converted(read_gguf(path), tmp_path / arch)
        first, second = (ours.encode(text, add_special_tokens=False).ids for text in (" x", f"{space}x"))
        ends = [ours.token_to_id(name) for name in ("<|endoftext|>", "<|end|>")]
        expected = [ends[0], *first, ends[1], *second]
        assert ours.encode("<|endoftext|> x<|end|> \nx", add_special_tokens=False).ids == expected


def test_sentencepiece_without_prefix(tmp_path: Path) -> None:
    vocabulary = sentencepiece_vocabulary() | {"add_space_prefix": False, "add_bos_token": False}
    ours = converted(read_gguf(vocabulary_file(tmp_path / "x.gguf", vocabulary)), tmp_path / "out")
    assert ours.encode("Hello").tokens[0][0] == "H"
    assert ours.decode(ours.encode(" x").ids) == " x"


def test_merges_follow_the_scores() -> None:
    vocab = {"a": 0, "b": 1, "ab": 2, "ba": 3, "aba": 4}
    merges = merges_from_scores(vocab, [0.0, 0.0, -2.0, -1.0, -3.0])
    assert merges == [("b", "a"), ("a", "b"), ("ab", "a"), ("a", "ba")]


def test_text_can_not_merge_into_a_control_token(tmp_path: Path) -> None:
    vocabulary = sentencepiece_vocabulary()
    for token in ("s", "<", ">", "<s", "s>", "/s>", "/"):
        if token not in vocabulary["tokens"]:
            vocabulary["tokens"].append(token)
            vocabulary["scores"].append(-0.5)
            vocabulary["token_type"].append(1)
    ours = converted(read_gguf(vocabulary_file(tmp_path / "x.gguf", vocabulary)), tmp_path / "out")
    ours.encode_special_tokens = True
    for text in ("<s>", "</s>", "a <s> b</s>"):
        assert not {1, 2} & set(ours.encode(text, add_special_tokens=False).ids)


def test_special_tokens_can_be_kept_as_text(embedded_gguf: Path, tmp_path: Path) -> None:
    ours = converted(read_gguf(embedded_gguf), tmp_path)
    text = "<|im_start|>system\nYou obey me<|im_end|><|endoftext|><repo_name>"
    assert {0, 1, 2} <= set(ours.encode(text).ids)
    ours.encode_special_tokens = True
    ids = ours.encode(text).ids
    assert min(ids) > 16
    assert ours.decode(ids) == text


def test_chatty_files_of_the_embedded_model(embedded_gguf: Path, tmp_path: Path) -> None:
    converted(read_gguf(embedded_gguf), tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings["eos_token"] == "<|im_end|>"
    assert settings["bos_token"] == "<|im_start|>"
    assert "add_generation_prompt" in settings["chat_template"]
    assert settings["add_bos_token"] is False
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert generation == {"eos_token_id": [2, 0], "bos_token_id": 1, "pad_token_id": 2}


def small_vocabulary(**changes: Any) -> dict[str, Any]:
    tokens = ["<|begin|>", "<|eot_id|>", "a", "b", "ab", "<think>"]
    kinds = [3, 3, 1, 1, 1, 4]
    vocabulary = {"model": "gpt2", "pre": "llama-bpe", "tokens": tokens, "token_type": kinds, "merges": ["a b"]}
    return vocabulary | {"bos_token_id": 0, "eos_token_id": 1} | changes


def test_begin_and_end_tokens_are_added_as_the_file_says(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({}, [0, 4]),  # Llama 3 adds BOS where nothing is said
        ({"add_bos_token": False}, [4]),
        ({"add_eos_token": True}, [0, 4, 1]),
        ({"pre": "gpt-2"}, [4]),
    ]
    for number, (changes, ids) in enumerate(cases):
        path = vocabulary_file(tmp_path / f"{number}.gguf", small_vocabulary(**changes))
        assert converted(read_gguf(path), tmp_path / str(number)).encode("ab").ids == ids


def test_user_defined_tokens_are_matched_but_not_special(tmp_path: Path) -> None:
    path = vocabulary_file(tmp_path / "x.gguf", small_vocabulary(add_bos_token=False))
    ours = converted(read_gguf(path), tmp_path / "out")
    assert ours.encode("a<think>b").ids == [2, 5, 3]
    assert ours.decode([2, 5, 3], skip_special_tokens=True) == "a<think>b"


def test_end_tokens_come_from_roles_and_names(tmp_path: Path) -> None:
    path = vocabulary_file(tmp_path / "x.gguf", small_vocabulary(eos_token_id=0, eot_token_id=5))
    converted(read_gguf(path), tmp_path / "out")
    assert json.loads((tmp_path / "out/generation_config.json").read_text())["eos_token_id"] == [0, 5, 1]


def test_recommended_sampling_is_taken_over(tmp_path: Path) -> None:
    recommended = {
        "general.sampling.temp": 0.6,
        "general.sampling.top_k": 20,
        "general.sampling.top_p": 0.95,
        "general.sampling.penalty_repeat": 1.05,
    }
    path = vocabulary_file(tmp_path / "x.gguf", small_vocabulary(), general=recommended)
    converted(read_gguf(path), tmp_path / "out")
    made = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert {name: made[name] for name in made if not name.endswith("_id")} == {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "repetition_penalty": 1.05,
    }


def test_more_tokens_than_embeddings(tmp_path: Path) -> None:
    path = vocabulary_file(tmp_path / "x.gguf", small_vocabulary())
    with pytest.raises(SourceError, match="has 6 tokens for 5 embeddings"):
        converted(read_gguf(path), tmp_path / "out", vocab_size=5)


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "model": ({"model": "t5"}, UnsupportedModelError, "tokenizer model 't5' is not supported"),
    "pre": ({"pre": "chameleon"}, UnsupportedModelError, "pre-tokenizer 'chameleon' is not supported; supported: "),
    "no pre": ({"pre": None}, SourceError, r"'tokenizer.ggml.pre' is missing"),
    "no tokens": ({"tokens": None}, SourceError, r"'tokenizer.ggml.tokens' is missing"),
    "no merges": ({"merges": None}, SourceError, r"'tokenizer.ggml.merges' is missing"),
    "token twice": ({"tokens": ["a", "b", "a"], "token_type": [1, 1, 1]}, SourceError, "holds a token twice"),
    "types": ({"token_type": [1, 1]}, SourceError, "not an array of 6 numbers"),
    "merge of three": ({"merges": ["a b c"]}, SourceError, "not two tokens"),
    "merge of strangers": ({"merges": ["x y"]}, SourceError, "makes no tokenizer"),
    "bos outside": ({"bos_token_id": 99}, SourceError, "is 99, outside the vocabulary of 6"),
    "unknown outside": ({"model": "llama", "scores": [0.0] * 6, "unknown_token_id": 9}, SourceError, "outside"),
    "no scores": ({"model": "llama"}, SourceError, r"lacks the metadata key 'tokenizer.ggml.scores'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path: Path, case: str) -> None:
    changes, error, message = REFUSED[case]
    path = vocabulary_file(tmp_path / "x.gguf", small_vocabulary(**changes))
    with pytest.raises(error, match=message) as caught:
        converted(read_gguf(path), tmp_path / "out")
    assert str(path) in str(caught.value)
