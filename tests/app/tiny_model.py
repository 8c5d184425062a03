"""A chat model without weights: a byte-level tokenizer with control tokens, and ChatML's template."""

import json
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from app.interface.text import chat_template, rendering
from app.interface.text.chat_model import ChatModel
from app.messages.requests import OnOverflow

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS_ID = 2
CONTEXT_TOKENS = 512
HIDDEN_SIZE = 8
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CORPUS = [
    "The capital of France is Paris. The quick brown fox jumps over the lazy dog.",
    "def main():\n    return 'hello world'\n",
    "Größe, naïve café, 日本語のテキスト, 👩‍👩‍👧 and 🎉 emoji; STOP here. user assistant system",
]

# Each starts a process, and is the same for models that differ in something else.
_module: Any = chat_template
_module.Rendering = lru_cache(maxsize=16)(rendering.Rendering)


@cache
def _tokenizer_text() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=[AddedToken(token, normalized=False, special=True) for token in CONTROL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return str(tokenizer.to_str())


def tokenizer_json() -> dict[str, Any]:
    values: dict[str, Any] = json.loads(_tokenizer_text())
    return values


def sentencepiece_json() -> dict[str, Any]:
    """As Llama 2's: a space becomes ▁, one is put before the text, unknown characters fall back to bytes."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyzTP."]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("i", "s"), ("▁", "a")]
    pieces = ["<unk>", "<s>", "</s>", *bytes_, *letters, *(left + right for left, right in merges)]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)},
            merges=merges,
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in pieces[:3]])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    values: dict[str, Any] = json.loads(tokenizer.to_str())
    return values


def reference_tokenizer() -> Tokenizer:
    return Tokenizer.from_str(_tokenizer_text())


def tiny_model(
    template: str | None = TEMPLATE,
    context_tokens: int = CONTEXT_TOKENS,
    on_overflow: OnOverflow = "refuse",
    generation_config: Mapping[str, Any] | None = None,
    **config: Any,
) -> ChatModel:
    """The same object for the same values: loading one starts a process."""
    return _loaded(json.dumps([template, context_tokens, on_overflow, generation_config, config]))


@lru_cache(maxsize=16)
def _loaded(values: str) -> ChatModel:
    template, context_tokens, on_overflow, generation_config, config = json.loads(values)
    tokenizer = tokenizer_json()
    vocab_size = len(tokenizer["model"]["vocab"])
    return ChatModel(
        tokenizer=tokenizer,
        config={
            "vocab_size": vocab_size,
            "max_position_embeddings": context_tokens,
            "hidden_size": HIDDEN_SIZE,
            "eos_token_id": EOS_ID,
        },
        tokenizer_config={"eos_token": "<|im_end|>", **config},
        generation_config=generation_config,
        template=template,
        on_overflow=on_overflow,
    )


def write_weights(path: Path, metadata: Mapping[str, str]) -> None:
    """A packed file without a tensor."""
    header = json.dumps({"__metadata__": metadata}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)


def write_packed(path: Path, **metadata: str) -> None:
    """A packed file with an embedding of 64 bytes, for checks of its header. metadata: instead of its own."""
    name = "model.embed_tokens.weight"
    matrices = {name: {"type": "int8", "rows": 1, "cols": 64, "group": 64}}
    own = {"format": "redoubt-packed", "layout_version": "2", "matrices": json.dumps(matrices)}
    entry = {"dtype": "U8", "shape": [1, 64], "data_offsets": [0, 64]}
    metadata = {**own, "decoder": '{"kinds": [], "layers": []}', **metadata}
    header = json.dumps({"__metadata__": metadata, name: entry}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))


def write_model(folder: Path) -> Path:
    """A new folder of a converted model, as far as it can be checked without its weights."""
    folder.mkdir()
    config = {"vocab_size": 360, "max_position_embeddings": 64, "eos_token_id": EOS_ID}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    write_packed(folder / "model.safetensors")
    return folder
