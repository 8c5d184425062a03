"""Copies a Hugging Face folder's tokenizer, chat template and generation defaults into a converted model.

The result is normalised: the template is always `chat_template` of tokenizer_config.json, and the end tokens are always
a list in generation_config.json. Does not tokenize.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from quant.errors import SourceError
from quant.files.json_file import read_json_object, write_json
from quant.files.plain_file import check_plain_file, read_plain_text
from quant.sources.gguf_tokenizer import END_TOKENS

_MAX_TEMPLATE_BYTES: Final = 8 << 20


def open_tokenizer(source: Path) -> Tokenizer:
    """Raises SourceError where the folder has no tokenizer.json or it can't be loaded."""
    path = source / "tokenizer.json"
    if not path.exists():
        raise SourceError(f"{source}: has no tokenizer.json{_instead(source)}")
    try:
        check_plain_file(path)
        return Tokenizer.from_file(str(path))
    except SourceError:
        raise
    except Exception as error:  # the tokenizers library raises bare Exception
        raise SourceError(f"{path}: is not a tokenizer: {error}") from error


def copy_hf_tokenizer(source: Path, target: Path, config: Mapping[str, Any]) -> None:
    """Writes tokenizer.json, tokenizer_config.json and generation_config.json into `target`.

    Raises SourceError where the folder has no tokenizer.json or it can't be loaded.
    """
    tokenizer_path = source / "tokenizer.json"
    tokenizer = open_tokenizer(source)
    highest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
    if highest >= config["vocab_size"]:
        raise SourceError(
            f"{tokenizer_path}: has a token {highest}, but the model has {config['vocab_size']} embeddings"
        )
    shutil.copyfile(tokenizer_path, target / "tokenizer.json")
    settings = _optional_json(source / "tokenizer_config.json")
    settings.pop("auto_map", None)
    template = _chat_template(source, settings)
    if template is not None:
        settings["chat_template"] = template
    for role in ("bos_token", "eos_token", "unk_token", "pad_token"):
        if isinstance(settings.get(role), dict):  # an AddedToken as an object
            settings[role] = settings[role].get("content")
    generation = _optional_json(source / "generation_config.json")
    generation["eos_token_id"] = _end_token_ids(generation, config, tokenizer)
    write_json(target / "tokenizer_config.json", settings)
    write_json(target / "generation_config.json", generation)


def read_chat_template(source: Path) -> str | None:
    """Returns a folder's default chat template. Raises SourceError."""
    return _chat_template(source, _optional_json(source / "tokenizer_config.json"))


def _instead(source: Path) -> str:
    """Advice for a folder with a tokenizer in another form."""
    others = (
        next((name for name in ("tokenizer.model", "tekken.json") if (source / name).exists()), None),
        next((path.name for path in sorted(source.glob("*.tiktoken"))), None),
    )
    found = next((name for name in others if name), None)
    if found is None:
        return "; take it from where the model was published"
    return (
        f", only {found}, which is not read: load it with transformers' AutoTokenizer and save_pretrained, which writes"
        " tokenizer.json, or take a GGUF of the model"
    )


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.exists() else {}


def _chat_template(source: Path, settings: Mapping[str, Any]) -> str | None:
    """The default template: chat_template.jinja's, chat_template.json's or tokenizer_config.json's, in turn."""
    path = source / "chat_template.jinja"
    if path.exists():
        return read_plain_text(path, _MAX_TEMPLATE_BYTES)
    template = _optional_json(source / "chat_template.json").get("chat_template", settings.get("chat_template"))
    if isinstance(template, list):  # several templates with names
        entries = [entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default"]
        template = entries[-1].get("template") if entries else None
    if template is not None and not isinstance(template, str):
        raise SourceError(f"{source}: its chat template is not text")
    return template


def _end_token_ids(generation: Mapping[str, Any], config: Mapping[str, Any], tokenizer: Tokenizer) -> list[int]:
    ends = generation.get("eos_token_id", config.get("eos_token_id"))
    if isinstance(ends, int):
        ends = [ends]
    if ends is not None and not isinstance(ends, list):
        raise SourceError(f"eos_token_id is {ends!r:.80}, neither a token nor a list of them")
    result = [end for end in ends or [] if type(end) is int]
    added = tokenizer.get_added_tokens_decoder()
    result += [token_id for token_id, token in added.items() if token.content in END_TOKENS and token.special]
    return list(dict.fromkeys(result))
