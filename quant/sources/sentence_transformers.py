"""What a sentence-transformers folder says beside config.json: pooling, layers behind it, prompts, the longest input.

The result stands in the converted config.json as `sentence_transformers`, in a form of our own. A folder without
modules.json says nothing. Knows no families.
"""

from pathlib import Path
from typing import Any, Final

from quant.errors import SourceError, UnsupportedModelError
from quant.families.settings import Settings
from quant.files.json_file import read_json, read_json_object

KEY: Final = "sentence_transformers"
_MODULES: Final = "modules.json"
_MOST_MODULES: Final = 16
_POOLINGS: Final = {"mean": "mean", "cls": "first", "lasttoken": "last"}
_FLAGS: Final = {
    "pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max", "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}  # fmt: skip
_ACTIVATIONS: Final = {"Identity": "identity", "Tanh": "tanh", "GELU": "gelu", "ReLU": "relu", "SiLU": "silu"}


def read_sentence_transformers(folder: Path) -> tuple[dict[str, Any], list[Path]] | None:
    """Returns the settings, and the weights of each dense layer in order; None if there is no modules.json.

    Raises SourceError or UnsupportedModelError, which name the file.
    """
    path = folder / _MODULES
    if not path.exists():
        return None
    modules = read_json(path)
    if not isinstance(modules, list) or not 0 < len(modules) <= _MOST_MODULES:
        raise SourceError(f"{path}: is not a list of 1 to {_MOST_MODULES} modules")
    found: dict[str, Any] = {"pooling": "mean", "normalize": False, "dense": []}
    weights: list[Path] = []
    for number, module in enumerate(modules):
        kind, place = _module(module, folder, path)
        if number == 0 and kind == "Transformer":
            found |= _transformer(place)
        elif kind == "LogitScore" and number == 1:
            found["score_tokens"] = _score_tokens(place / "config.json")
        elif kind == "Pooling" and number == 1:
            found["pooling"] = _pooling(place / "config.json")
        elif kind == "Dense" and number > 1 and not found["normalize"]:
            found["dense"].append(_dense(place / "config.json"))
            weights.append(place / "model.safetensors")
        elif kind == "Normalize" and number > 1:
            found["normalize"] = True
        else:
            raise UnsupportedModelError(f"{path}: the module {kind!r} at place {number} is not supported")
    return found | _prompts(folder), weights


def _module(module: Any, folder: Path, path: Path) -> tuple[str, Path]:
    kind, place = (module.get(key) for key in ("type", "path")) if isinstance(module, dict) else (None, None)
    if not isinstance(kind, str) or not isinstance(place, str):
        raise SourceError(f"{path}: a module has no type or no path")
    if place and (Path(place).name != place or place in (".", "..") or "\0" in place):
        raise SourceError(f"{path}: {place!r} is not a plain folder name")
    return kind.rpartition(".")[2], folder / place if place else folder


def _transformer(place: Path) -> dict[str, Any]:
    path = place / "sentence_bert_config.json"
    if not path.exists():
        return {}
    settings = Settings(read_json_object(path), str(path))
    result: dict[str, Any] = {"lower_case": True} if settings.flag("do_lower_case", False) else {}
    return result | ({"max_tokens": settings.size("max_seq_length")} if "max_seq_length" in settings else {})


def _score_tokens(path: Path) -> list[int]:
    """The tokens whose logits' difference is a reranker's score."""
    settings = Settings(read_json_object(path), str(path))
    return [settings.count("true_token_id"), settings.count("false_token_id")]


def _pooling(path: Path) -> str:
    config = read_json_object(path)
    mode = config.get("pooling_mode")
    if mode is None:
        modes = [name for flag, name in _FLAGS.items() if config.get(flag) is True]
        mode = modes[0] if len(modes) == 1 else modes
    if not isinstance(mode, str) or mode not in _POOLINGS:
        raise UnsupportedModelError(f"{path}: the pooling {mode!r} is not supported; supported: {', '.join(_POOLINGS)}")
    if config.get("include_prompt") is False:
        raise UnsupportedModelError(f"{path}: include_prompt false is not supported")
    return _POOLINGS[mode]


def _dense(path: Path) -> dict[str, Any]:
    settings = Settings(read_json_object(path), str(path))
    activation = settings.text("activation_function", "torch.nn.modules.activation.Tanh").rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise settings.unsupported("activation_function", f"is {activation!r}; supported: {', '.join(_ACTIVATIONS)}")
    return {
        "rows": settings.size("out_features"),
        "cols": settings.size("in_features"),
        "bias": settings.flag("bias", True),
        "activation": _ACTIVATIONS[activation],
    }


def _prompts(folder: Path) -> dict[str, Any]:
    path = folder / "config_sentence_transformers.json"
    if not path.exists():
        return {}
    config = read_json_object(path)
    prompts = config.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(each, str) for each in (*prompts, *prompts.values())):
        raise SourceError(f"{path}: prompts is not an object of texts")
    kept = {name: text for name, text in prompts.items() if text}
    default = config.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise SourceError(f"{path}: default_prompt_name {default!r} is none of the prompts")
    return ({"prompts": kept} if kept else {}) | ({"default_prompt": default} if default in kept else {})
