"""transformers' calls on the engine: `from_pretrained(..., load_in_4bit=True)`, then `generate(ids, ...)`.

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
import os
import secrets
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from app.engine.engine import Engine
from app.engine.generation import Event
from app.engine.native_runner import NativeRunner
from app.library.decoding import DEFAULTS, Decoding, decoding_of
from app.messages.failures import EngineError, InvalidRequestError, RequestTooLongError
from app.messages.requests import BeamParams, ContrastiveParams, GenerateRequest
from kernels import _native
from quant.conversion.convert import convert
from quant.errors import QuantError
from quant.files.cache_folder import cache_folder, file_state
from quant.files.json_file import read_json_object
from quant.packed.packed_file import LAYOUT_VERSION, is_packed_model

DEFAULT_CONTEXT_TOKENS: Final = 4096
_STEP_TOKENS: Final = 256
_MOST_BRANCHES: Final = 64
"""Of a search: transformers' default of `top_k` has 50 candidates."""
_MOST_BRANCHES_WITH_STATES: Final = 16
"""Each has recurrent states, which are as large as hundreds of KV pages."""
_HARMLESS: Final[Mapping[str, tuple[object, ...]]] = {
    "attention_mask": (), "return_dict_in_generate": (False, None),
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

    def __init__(
        self, folder: Path, *, threads: int | None, context_tokens: int | None, compute_type: str, kv_type: str
    ) -> None:
        """Loads a converted folder; users call `from_pretrained`."""
        self.folder = folder
        self.config: dict[str, Any] = read_json_object(folder / "config.json")
        self.generation_config: dict[str, Any] = read_json_object(folder / "generation_config.json")
        trained = int(self.config["max_position_embeddings"])
        wanted = DEFAULT_CONTEXT_TOKENS if context_tokens is None else context_tokens
        if wanted < 2 or (context_tokens is not None and wanted > trained):
            raise ValueError(f"context_tokens: {wanted} is not 2 to the model's {trained}")
        self._context_tokens = min(wanted, trained)
        has_states = _native.Model.state_page_bytes(str(folder)) > 0
        branches = _MOST_BRANCHES_WITH_STATES if has_states else _MOST_BRANCHES
        # One context, as much again for a search or for later prompts that begin alike, and each branch's last page.
        pages = 2 * -(-self._context_tokens // _native.PAGE_TOKENS) + branches
        self._runner = NativeRunner(
            str(folder),
            threads=len(os.sched_getaffinity(0)) if threads is None else threads,
            compute_type=compute_type,
            kv_type=kv_type,
            kv_pages=pages,
            max_sequences=branches,
            max_step_tokens=_STEP_TOKENS,
            max_context_tokens=self._context_tokens,
        )
        self._engine = Engine(self._runner)
        self._engine.start()
        weakref.finalize(self, self._engine.stop)
        self._names = count()

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
        compute_type: str = "int8",
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
        quality and takes minutes, once. context_tokens: prompt and output together, by default the model's limit, at
        most DEFAULT_CONTEXT_TOKENS. compute_type: int8, fp32, or bf16 where the processor has AMX. cache_dir: where
        converted models are kept. options: further options of `convert`, by name.

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
        runtime = {
            "threads": threads,
            "context_tokens": context_tokens,
            "compute_type": compute_type,
            "kv_type": kv_type,
        }
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
        num_beams: int | None = None,
        num_beam_groups: int | None = None,
        diversity_penalty: float | None = None,
        length_penalty: float | None = None,
        early_stopping: bool | str | None = None,
        penalty_alpha: float | None = None,
        num_return_sequences: int | None = None,
        use_cache: bool | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        pad_token_id: int | None = None,
        seed: int | None = None,
        **other: Any,
    ) -> Any:
        """Returns the prompt and the new tokens, [num_return_sequences, n], of the same kind as `input_ids`.

        Options that are not given come from the model's generation_config.json, else they have transformers' defaults;
        without max_new_tokens and max_length the output may fill the context. Without sampling: greedy; beams with
        num_beams above 1, diverse ones with num_beam_groups; contrastive search with penalty_alpha and top_k.
        use_cache=False computes the prompt without what earlier calls have left; the text is the same. seed: None for a
        random one.

        Raises TypeError for an unknown option, ValueError for a value or a combination that is not supported.
        """
        self._check_others(other)
        given = locals()
        decoding = decoding_of({name: given[name] for name in DEFAULTS}, self.generation_config)
        if streamer is not None and (decoding.sequences > 1 or isinstance(decoding.search, BeamParams)):
            name = "num_return_sequences" if decoding.sequences > 1 else "num_beams"
            raise ValueError(f"streamer: {name} must be 1, since a streamer shows one output as it is made")
        prompt = _prompt(input_ids, self._runner.vocab_size)
        new_tokens = self._new_tokens(len(prompt), self._context_tokens - len(prompt), max_new_tokens, max_length)
        ends = self.generation_config.get("eos_token_id") if eos_token_id is None else eos_token_id
        stops = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
        requests = self._requests(prompt, new_tokens, decoding, stops, seed)
        if streamer is not None:
            streamer.put(np.array([prompt], np.int64))
        rows = [[*prompt, *row] for row in self._outputs(requests, stops, streamer)]
        if streamer is not None:
            streamer.end()
        pad = self.generation_config.get("pad_token_id") if pad_token_id is None else pad_token_id
        return _like(input_ids, _padded(rows, pad if pad is not None else stops[0] if stops else 0))

    def _requests(
        self, prompt: Sequence[int], new_tokens: int, decoding: Decoding, stops: Sequence[int], seed: int | None
    ) -> list[GenerateRequest]:
        """One for each output, or one for a search."""
        if isinstance(search := decoding.search, BeamParams | ContrastiveParams):
            width, name = (
                (search.beams, "num_beams") if isinstance(search, BeamParams) else (search.candidates, "top_k")
            )
            if width > self._runner.max_sequences:
                raise ValueError(f"{name}: {width} is more than this model's {self._runner.max_sequences} branches")
        first = secrets.randbits(62) if seed is None else seed
        return [
            GenerateRequest(
                f"{next(self._names)}",
                tuple(prompt),
                new_tokens,
                replace(decoding.sampling, seed=first + number),
                # A sampled output's end token is in it, so it is looked for here.
                frozenset() if search is None else frozenset(stops),
                search=search,
                uses_cache=decoding.uses_cache,
                tenant=b"",
            )
            for number in range(1 if search is not None else decoding.sequences)
        ]

    def _outputs(
        self, requests: Sequence[GenerateRequest], stops: Sequence[int], streamer: Streamer | None
    ) -> list[list[int]]:
        """Runs the requests; returns all outputs with their end tokens."""
        events: SimpleQueue[tuple[object, Event]] = SimpleQueue()

        def deliver(of_step: Sequence[tuple[object, Event]]) -> None:
            for event in of_step:
                events.put(event)

        rows: dict[object, list[int]] = {request.request_id: [] for request in requests}
        more: list[list[int]] = []
        left = set(rows)
        try:
            for request in requests:
                self._engine.submit(request, deliver, request.request_id)
            while left:
                name, event = events.get()
                if isinstance(event, EngineError):
                    raise event
                ended = () if event.end_token_id is None else (event.end_token_id,)
                more += [
                    [*answer.token_ids, *(() if answer.end_token_id is None else (answer.end_token_id,))]
                    for answer in event.more
                ]
                for token in (*event.token_ids, *ended) if name in left else ():
                    rows[name].append(token)
                    if streamer is not None:
                        streamer.put(np.array([token], np.int64))
                    if token in stops:
                        left.discard(name)
                        break
                if event.finish_reason is not None:
                    left.discard(name)
        except (InvalidRequestError, RequestTooLongError) as error:
            raise ValueError(str(error)) from error
        finally:
            for request in requests:
                self._engine.abort(request.request_id)
        return [*rows.values(), *more]

    def eval(self) -> Self:
        """Does nothing: the engine only runs inference."""
        return self

    def to(self, device: str) -> Self:
        """Accepts the processor. Raises ValueError for another device."""
        if str(device) != "cpu":
            raise ValueError(f"device {device!r}: the engine runs on the processor only")
        return self

    def resident_bytes(self) -> dict[str, int]:
        return self._runner.model.resident_bytes()

    def _new_tokens(self, prompt: int, room: int, new_tokens: int | None, length: int | None) -> int:
        if new_tokens is None and length is not None:
            new_tokens = length - prompt
        if new_tokens is None:
            new_tokens = min(room, int(self.generation_config.get("max_new_tokens") or room))
        if not 1 <= new_tokens <= room:
            raise ValueError(
                f"max_new_tokens: {new_tokens} after a prompt of {prompt} tokens do not fit the context of"
                f" {self._context_tokens}; from_pretrained takes context_tokens"
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


def _padded(rows: list[list[int]], pad: int) -> list[list[int]]:
    longest = max(map(len, rows))
    return [row + [pad] * (longest - len(row)) for row in rows]


def _like(given: Any, rows: list[list[int]]) -> Any:
    """The outputs as [rows, n] of the input's kind."""
    if hasattr(given, "new_tensor"):
        return given.new_tensor(rows)
    return rows if isinstance(given, list | tuple) else np.array(rows, np.int64)
