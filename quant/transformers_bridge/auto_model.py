"""transformers' calls on the native engine: `from_pretrained(..., load_in_4bit=True)`, then `generate(ids, ...)`.

    from quant import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(folder, load_in_4bit=True)
    output = model.generate(ids, streamer=TextStreamer(tokenizer), max_new_tokens=100)

A checkpoint is converted on first use, into the cache; a converted folder is used as it is. Ids may be a list, a NumPy
array or a torch tensor, and the output is of the same kind. Streamers are transformers' or anything with put() and
end(). Needs neither torch nor transformers. Unsupported options are refused by name: an option that would change the
output is never ignored.
"""

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from kernels import _native
from quant.conversion.convert import convert
from quant.errors import QuantError
from quant.files.cache_folder import cache_folder, file_state
from quant.files.json_file import read_json_object
from quant.packed.native_model import NativeModel
from quant.packed.packed_file import LAYOUT_VERSION, is_packed_model

DEFAULT_CONTEXT_TOKENS: Final = 4096
_TOP_K: Final = 50  # transformers' default for sampling
_HARMLESS: Final[Mapping[str, tuple[object, ...]]] = {
    "attention_mask": (), "pad_token_id": (), "use_cache": (True, False, None), "num_beams": (1, None),
    "num_return_sequences": (1, None), "return_dict_in_generate": (False, None), "length_penalty": (1.0, None),
}  # fmt: skip
"""Options of transformers' generate that change nothing here, with the accepted values (empty: all)."""


class Streamer(Protocol):
    """transformers' BaseStreamer."""

    def put(self, value: Any) -> None:
        """Receives token ids: first the prompt's, [1, n], then each new one, [1]."""

    def end(self) -> None:
        """Ends the output."""


class AutoModelForCausalLM:
    """A causal language model on the native engine. Not thread-safe."""

    def __init__(self, folder: Path, *, threads: int | None, context_tokens: int | None, kv_type: str) -> None:
        """Loads a converted folder; users call `from_pretrained`."""
        self.folder = folder
        self.config: dict[str, Any] = read_json_object(folder / "config.json")
        self.generation_config: dict[str, Any] = read_json_object(folder / "generation_config.json")
        trained = int(self.config["max_position_embeddings"])
        wanted = DEFAULT_CONTEXT_TOKENS if context_tokens is None else context_tokens
        if wanted < 2 or (context_tokens is not None and wanted > trained):
            raise ValueError(f"context_tokens: {wanted} is not 2 to the model's {trained}")
        self._model = NativeModel(folder, context_tokens=min(wanted, trained), threads=threads, kv_type=kv_type)

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        load_in_4bit: bool = False,
        load_in_8bit: bool = False,
        qtype: str | None = None,
        group_size: int | None = None,
        threads: int | None = None,
        context_tokens: int | None = None,
        kv_type: str = "auto",
        cache_dir: str | Path | None = None,
        progress: bool = True,
        trust_remote_code: bool = False,
        device_map: str | None = None,
        **options: Any,
    ) -> Self:
        """Opens a converted folder, a Hugging Face folder or a GGUF file; the latter two are converted on first use.

        load_in_4bit: `convert`'s default type, which keeps the codes of a checkpoint that has them; load_in_8bit: int8;
        qtype: any type of `convert`. Weights are rounded to nearest, which takes seconds; method="auto" has better
        quality and takes minutes, once. context_tokens: prompt and output together, by default the model's
        limit, at most DEFAULT_CONTEXT_TOKENS. cache_dir: where converted models are kept. options: further options of
        `convert`, by name.

        Raises QuantError for what can't be opened or converted, ValueError or TypeError for an option.
        """
        if trust_remote_code:
            raise ValueError("trust_remote_code: a checkpoint's own code is never run")
        if device_map not in (None, "cpu", "auto"):
            raise ValueError(f"device_map: {device_map!r}; the engine runs on the processor only")
        if load_in_4bit + load_in_8bit + (qtype is not None) > 1:
            raise ValueError("load_in_4bit, load_in_8bit and qtype: give one of them")
        source = Path(path)
        if not source.exists():
            raise QuantError(f"{path}: no such file or folder; models are not downloaded, give a local one")
        runtime = {"threads": threads, "context_tokens": context_tokens, "kv_type": kv_type}
        if is_packed_model(source):
            return cls(source, **runtime)  # type: ignore[arg-type]
        wanted = qtype or ("int8" if load_in_8bit else "auto" if load_in_4bit else None)
        if wanted is None:
            raise ValueError("load_in_4bit, load_in_8bit or qtype: the engine needs one of them for a checkpoint")
        asked = {"qtype": wanted, "group_size": group_size, "method": "rtn", **options}
        state = json.dumps([file_state(source.resolve()), asked, LAYOUT_VERSION], sort_keys=True, default=str)
        name = f"{source.resolve().stem}-{hashlib.sha256(state.encode()).hexdigest()[:16]}"
        folder = (Path(cache_dir) if cache_dir is not None else cache_folder() / "models") / name
        if not is_packed_model(folder):
            convert(source, folder, progress=progress, **asked)
        return cls(folder, **runtime)  # type: ignore[arg-type]

    def generate(
        self,
        input_ids: Any = None,
        *,
        streamer: Streamer | None = None,
        max_new_tokens: int | None = None,
        max_length: int | None = None,
        do_sample: bool | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        seed: int | None = None,
        **other: Any,
    ) -> Any:
        """Returns the prompt and the new tokens, [1, n], of the same kind as `input_ids` (a list for a list).

        Options that are not given come from the model's generation_config.json, else they have transformers' defaults;
        without max_new_tokens and max_length the output may fill the context. do_sample=False is greedy. seed: None for
        a random one.

        Raises TypeError for an unknown option, ValueError for a value that is not supported.
        """
        self._check_others(other)
        prompt = _prompt(input_ids, self._model.vocab_size)
        room = self._model.context_tokens - len(prompt)
        new_tokens = self._new_tokens(len(prompt), room, max_new_tokens, max_length)

        def option(name: str, given: Any, default: Any) -> Any:
            configured = self.generation_config.get(name)
            return given if given is not None else default if configured is None else configured

        sampling = bool(option("do_sample", do_sample, False))
        penalty = float(option("repetition_penalty", repetition_penalty, 1.0))
        chosen = {
            "temperature": float(option("temperature", temperature, 1.0)),
            "top_k": int(option("top_k", top_k, _TOP_K)),
            "top_p": float(option("top_p", top_p, 1.0)),
            "min_p": float(option("min_p", min_p, 0.0)),
        }
        if sampling and chosen["temperature"] <= 0:
            raise ValueError("temperature: sampling needs more than 0; do_sample=False is greedy")
        sampler = _native.Sampler(
            vocab_size=self._model.vocab_size,
            prompt=prompt,
            repetition_penalty=penalty,
            seed=secrets.randbits(63) if seed is None else seed,
            **(chosen if sampling else {"temperature": 0.0}),  # type: ignore[arg-type]
        )
        ends = option("eos_token_id", eos_token_id, [])
        stops = frozenset([ends] if isinstance(ends, int) else ends)
        output = list(prompt)
        if streamer is not None:
            streamer.put(np.array([prompt], np.int64))
        for token in self._model.generate(prompt, sampler, new_tokens, stops):
            output.append(token)
            if streamer is not None:
                streamer.put(np.array([token], np.int64))
        if streamer is not None:
            streamer.end()
        return _like(input_ids, output)

    def eval(self) -> Self:
        """Does nothing: the engine only runs inference."""
        return self

    def to(self, device: str) -> Self:
        """Accepts the processor. Raises ValueError for another device."""
        if str(device) != "cpu":
            raise ValueError(f"device {device!r}: the engine runs on the processor only")
        return self

    def resident_bytes(self) -> dict[str, int]:
        return self._model.native.resident_bytes()

    def _new_tokens(self, prompt: int, room: int, new_tokens: int | None, length: int | None) -> int:
        if new_tokens is None and length is not None:
            new_tokens = length - prompt
        if new_tokens is None:
            new_tokens = min(room, int(self.generation_config.get("max_new_tokens") or room))
        if not 1 <= new_tokens <= room:
            raise ValueError(
                f"max_new_tokens: {new_tokens} after a prompt of {prompt} tokens do not fit the context of"
                f" {self._model.context_tokens}; from_pretrained takes context_tokens"
            )
        return new_tokens

    @staticmethod
    def _check_others(other: Mapping[str, Any]) -> None:
        for name, value in other.items():
            if name not in _HARMLESS:
                raise TypeError(f"generate has no option {name!r}")
            if _HARMLESS[name] and value not in _HARMLESS[name]:
                raise ValueError(f"{name}: {value!r} is not supported; supported: {_HARMLESS[name][0]!r}")
        mask = other.get("attention_mask")
        if mask is not None and not bool(np.asarray(mask).all()):
            raise ValueError("attention_mask: masked tokens are not supported; give the prompt without padding")


def _prompt(input_ids: Any, vocab_size: int) -> list[int]:
    if input_ids is None:
        raise ValueError("input_ids: generate needs a prompt")
    ids: NDArray[Any] = np.asarray(input_ids)
    if ids.ndim == 2 and ids.shape[0] != 1:
        raise ValueError(f"input_ids: {ids.shape[0]} prompts; generate takes one at a time, the service takes many")
    ids = ids.reshape(-1) if ids.ndim == 2 else ids
    if ids.ndim != 1 or not len(ids) or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError("input_ids: not one run of integers, [n] or [1, n]")
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise ValueError(f"input_ids: tokens outside 0 to {vocab_size - 1}")
    return [int(token) for token in ids]


def _like(given: Any, output: list[int]) -> Any:
    """The output as [1, n] of the input's kind."""
    if hasattr(given, "new_tensor"):
        return given.new_tensor([output])
    return [output] if isinstance(given, list | tuple) else np.array([output], np.int64)
