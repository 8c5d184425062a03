"""int4 against the original: response times, memory and load times of one shape's weight types, and of transformers.

    python -m bench.original SHAPE --threads 2 --out JSON [--layers N] [--types TYPE,...]
        [--inputs 32,256,512,1024,2048] [--outputs 32,256,1024,2048] [--seconds 60] [--work FOLDER]

The weights are random, so one of `redoubt synth`'s shapes is all it takes. Each type is a process of its own that loads
the model, answers once to warm up, and then each input length, up to the longest of the output lengths that --seconds
allow: the time until token n is the response time of an answer of n tokens. `torch-*` is transformers' `generate` on
torch, of a checkpoint in bf16, which is what such models are published in. The JSON is written after each type, and the
same command goes on with the types that it lacks. What it keeps of an earlier run keeps that run's day, commit and
command, which each type has: `measured_at`, `commit`, `command`; those of the whole are the newest run's.

- `load_s`: until the model can answer, files in the page cache; ours maps its weights, transformers reads its own.
- `resident_bytes`: what the process grew by, after loading and the first answer. Mapped weights count.
- `stages_s`: where a step of ours spends its time, after the shortest input; `barriers` are part of the stages.
- `first_token_s`, `next_token_s` (median over an answer), `response_s` (by output tokens), by input tokens;
  `first_times_s`: of the first 11 tokens, the time that each took.
"""

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.common import (
    ROOT,
    OneLineParser,
    at_least,
    available_memory_bytes,
    json_text,
    machine,
    number_list,
    process_resident_bytes,
)
from bench.engine import EngineBench
from bench.places import shown_command
from bench.processor import machine_facts, this_processor
from bench.work import Work
from quant.conversion.shapes import SHAPES, of_layers
from quant.conversion.synth import synth

OURS: Final = ("fp32", "fp16", "bf16", "int8", "sym_int4", "asym_int4")
THEIRS: Final[Mapping[str, str]] = {"torch-bf16": "bfloat16", "torch-fp32": "float32"}
TYPES: Final = ("sym_int4", "asym_int4", "int8", "bf16", "torch-bf16", "fp16", "fp32", "torch-fp32")
"""The most telling first, for runs that are cut short."""
INPUTS: Final = (32, 256, 512, 1024, 2048)
OUTPUTS: Final = (32, 256, 1024, 2048)
BYTES_PER_WEIGHT: Final = {
    "sym_int4": 0.54, "asym_int4": 0.57, "int8": 1.04, "bf16": 2, "fp16": 2, "fp32": 4,
    "torch-bf16": 2, "torch-fp32": 4,
}  # fmt: skip
OTHERWISE_BYTES: Final = 2 << 30
"""Memory for everything but the weights."""
FIRST_TOKENS: Final = 11
"""As many as published curves have."""
_WARM_UP: Final = (32, 9)
_SHORT_S: Final = 2.0
_STAGE_ROUNDS, _STAGE_TOKENS = 5, 16
_PIECE: Final = 1 << 24
"""Random weights that repeat through a checkpoint; drawing them all takes minutes."""
Answer = Callable[[int, int], list[float]]
"""Seconds until each token of an answer, from the tokens of its prompt and their number."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(_measure(options)))
        return 0
    if options.out is None:
        parser.error("--out: name the JSON")
    options.work.mkdir(parents=True, exist_ok=True)
    settings = {name: getattr(options, name) for name in ("shape", "layers", "threads", "seconds")}
    settings |= {name: list(getattr(options, name)) for name in ("inputs", "outputs")}
    here = machine()
    run = {
        "commit": here["commit"], "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _command(arguments),
    }  # fmt: skip
    result: dict[str, Any] = {**settings, **here, "machine": machine_facts(this_processor()), **run, "types": {}}
    if options.out.exists():
        kept = json.loads(options.out.read_text(encoding="utf-8"))
        if kept.get("machine") != result["machine"]:
            parser.error(f"--out: {options.out} is of another machine: name another file")
        if all(kept.get(name) == value for name, value in settings.items()):
            result["types"] = _kept(kept, options.types if options.again else ())
    weights = weights_of(of_layers(SHAPES[options.shape], options.layers))
    for name in options.types:
        if name not in result["types"]:
            needed = weights * BYTES_PER_WEIGHT[name] + OTHERWISE_BYTES
            if needed > (free := available_memory_bytes()):
                lacks = f"needs {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} are free"
                print(f"redoubt: {name} is left out: {lacks}", file=sys.stderr)
                result["types"][name] = {"left_out": lacks}
            else:
                result["types"][name] = _child(name, options) | run
            result["types"] = {each: result["types"][each] for each in TYPES if each in result["types"]}
            options.out.write_text(json_text(result), encoding="utf-8")
    failed = [name for name in options.types if "failed" in result["types"][name]]
    for name in failed:
        print(f"redoubt: {name}: {result['types'][name]['failed']}", file=sys.stderr)
    return 1 if failed else 0


def _kept(result: Mapping[str, Any], again: Sequence[str]) -> dict[str, Any]:
    """The types of an earlier result but `again`, each with the run that it is of."""
    run = {name: result[name] for name in ("commit", "measured_at", "command") if name in result}
    types = result["types"].items()
    return {name: run | one for name, one in types if "inputs" in one and name not in again}


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="python -m bench.original", description="int4 against the original weights.")
    parser.add_argument("shape", choices=[name for name, shape in SHAPES.items() if shape["model_type"] == "llama"])
    parser.add_argument("--layers", type=at_least(1), help="only the first layers (default: all)")
    parser.add_argument("--threads", type=at_least(1), required=True)
    parser.add_argument("--types", type=_types, default=TYPES, help=f"of {','.join(TYPES)} (default: all)")
    parser.add_argument("--inputs", type=number_list, default=INPUTS, help=f"(default {_listed(INPUTS)})")
    parser.add_argument("--outputs", type=number_list, default=OUTPUTS, help=f"(default {_listed(OUTPUTS)})")
    parser.add_argument("--seconds", type=at_least(1), default=60, help="most of an answer (default %(default)s)")
    parser.add_argument("--work", type=Path, default=Path("build/original"), help="keeps the weights (%(default)s)")
    parser.add_argument("--drop", action="store_true", help="delete a type's weights when it is measured")
    parser.add_argument("--again", action="store_true", help="measure also those of --types that the JSON has")
    parser.add_argument("--out", type=Path, help="the JSON")
    parser.add_argument("--one", choices=TYPES, help=argparse.SUPPRESS)
    return parser


def weights_of(shape: Mapping[str, Any]) -> int:
    """The weights of a Llama, embedding and head included."""
    hidden, keys = shape["hidden_size"], shape["num_key_value_heads"] * shape["head_dim"]
    layer = 2 * hidden * (hidden + keys) + 3 * hidden * shape["intermediate_size"]
    tables = 1 if shape["tie_word_embeddings"] else 2
    return int(shape["num_hidden_layers"] * layer + tables * shape["vocab_size"] * hidden)


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _types(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in TYPES]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no {unknown[0]!r}; choose of {', '.join(TYPES)}")
    return names


def _command(arguments: Sequence[str] | None) -> str:
    return shown_command(["python", "-m", "bench.original", *(sys.argv[1:] if arguments is None else arguments)])


def _child(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measures one type in a process of its own; {"failed": its last words} if that does not end well."""
    folder = _weights(name, options)
    command = [sys.executable, "-m", "bench.original", options.shape, "--one", name]
    for option in ("threads", "seconds", "work", "layers"):
        if getattr(options, option) is not None:
            command += [f"--{option}", str(getattr(options, option))]
    for option in ("inputs", "outputs"):
        command += [f"--{option}", _listed(getattr(options, option))]
    print(f"redoubt: {options.shape}, {name}", file=sys.stderr, flush=True)
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if options.drop:
        shutil.rmtree(folder)
    if ended.returncode:
        words = ended.stderr.strip().splitlines()[-1:] or [f"its process ended with status {ended.returncode}"]
        return {"failed": words[0][:300]}
    result: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return result


def _weights(name: str, options: argparse.Namespace) -> Path:
    """The folder of a type's weights, made once."""
    folder = _folder(name, options)
    if folder.exists():
        return folder
    if name in OURS:
        synth(options.shape, folder, qtype=name, layers=options.layers, progress=False)
        return folder
    made = Path(tempfile.mkdtemp(prefix=".partial-", dir=options.work))
    try:
        write_checkpoint(of_layers(SHAPES[options.shape], options.layers), made)
        made.rename(folder)
    except BaseException:
        shutil.rmtree(made)
        raise
    return folder


def _folder(name: str, options: argparse.Namespace) -> Path:
    layers = "" if options.layers is None else f"-{options.layers}-layers"
    work: Path = options.work.resolve()
    return work / f"{options.shape}{layers}-{'checkpoint' if name in THEIRS else name}"


def write_checkpoint(shape: Mapping[str, Any], folder: Path) -> None:
    """A Llama in bf16 for transformers, a shard for each layer."""
    from ml_dtypes import bfloat16
    from safetensors.numpy import save_file

    hidden, inner, vocab = shape["hidden_size"], shape["intermediate_size"], shape["vocab_size"]
    head = hidden // shape["num_attention_heads"]
    keys = shape["num_key_value_heads"] * head
    piece = np.random.default_rng(0).standard_normal(_PIECE, np.float32)
    pieces = {cols: (piece / np.float32(math.sqrt(cols))).astype(bfloat16) for cols in (hidden, inner)}

    def matrix(rows: int, cols: int) -> Any:
        return np.resize(pieces[cols], (rows, cols))

    def norm() -> Any:
        return np.ones(hidden, bfloat16)

    rest = {"model.embed_tokens.weight": matrix(vocab, hidden), "model.norm.weight": norm()}
    if not shape["tie_word_embeddings"]:
        rest["lm_head.weight"] = matrix(vocab, hidden)
    shards = {"rest": rest}
    index: dict[str, str] = {}
    for layer in range(-1, shape["num_hidden_layers"]):
        if layer >= 0:
            sizes = {
                "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (keys, hidden),
                "self_attn.v_proj": (keys, hidden), "self_attn.o_proj": (hidden, hidden),
                "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner),
            }  # fmt: skip
            tensors = {f"model.layers.{layer}.{name}.weight": matrix(*size) for name, size in sizes.items()}
            norms = ("input_layernorm", "post_attention_layernorm")
            shards = {f"{layer}": tensors | {f"model.layers.{layer}.{name}.weight": norm() for name in norms}}
        for name, tensors in shards.items():
            file = f"model-{name}.safetensors"
            save_file(tensors, folder / file, metadata={"format": "pt"})
            index |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    config = {**shape, "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    """All of one type, in this process."""
    open_one = _open_ours if options.one in OURS else _open_theirs
    about, answer, bench = open_one(options)
    try:
        about |= _answers(about.pop("before_bytes"), answer, options)
        return about if bench is None else about | {"stages_s": _stages(bench, min(options.inputs))}
    finally:
        if bench is not None:
            bench.close()


def _answers(before_bytes: int, answer: Answer, options: argparse.Namespace) -> dict[str, Any]:
    answer(*_WARM_UP)
    resident_bytes = process_resident_bytes() - before_bytes
    inputs = {}
    times, before = answer(*_WARM_UP), _WARM_UP[0]
    for tokens in options.inputs:
        first_s, step_s = times[0] * tokens / before, statistics.median(np.diff(times).tolist())
        if first_s < _SHORT_S:
            answer(tokens, 1)  # what a new length costs once
        fit = [n for n in options.outputs if first_s + (n - 1) * step_s <= options.seconds]
        times, before = answer(tokens, max(fit, default=_WARM_UP[1])), tokens
        inputs[str(tokens)] = {
            "first_token_s": round(times[0], 5),
            "next_token_s": round(statistics.median(np.diff(times).tolist()), 5),
            "response_s": {str(n): round(times[n - 1], 4) for n in fit},
            "first_times_s": [round(taken, 5) for taken in np.diff(times[:FIRST_TOKENS], prepend=0).tolist()],
        }
    return {"resident_bytes": resident_bytes, "inputs": inputs}


def _stages(bench: EngineBench, prompt_tokens: int) -> dict[str, dict[str, float]]:
    """Seconds of each stage of the native step, over all layers: of the prompt, and of a further token (medians)."""
    profiles = [
        bench.profile(lambda: bench.answer_times_s(prompt_tokens, 1 + _STAGE_TOKENS)) for _ in range(_STAGE_ROUNDS)
    ]
    stages: dict[str, dict[str, float]] = {}
    for name, kind in (("prompt", "prompt"), ("next_token", "decode")):
        rounds = [profile[kind] for profile in profiles]
        stages[name] = {
            stage: round(statistics.median(one[stage][0] / steps for steps, one in rounds), 7) for stage in rounds[0][1]
        }
    return stages


def _open_ours(options: argparse.Namespace) -> tuple[dict[str, Any], Answer, EngineBench | None]:
    lengths = zip(_WARM_UP, (options.inputs, options.outputs), strict=True)
    longest = Work("decode", 1, *(max(own, *asked) for own, asked in lengths))
    before = process_resident_bytes()
    bench = EngineBench(
        _folder(options.one, options), threads=options.threads, kv_type="auto", works=[longest], clock="wall"
    )
    model = bench.runner.model
    about = {"load_s": round(bench.load_s, 3), "before_bytes": before, "tier": model.tier, "kv_type": model.kv_type}
    return about, bench.answer_times_s, bench


def _open_theirs(options: argparse.Namespace) -> tuple[dict[str, Any], Answer, EngineBench | None]:
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    torch.set_num_threads(options.threads)
    transformers.utils.logging.set_verbosity_error()
    before, began = process_resident_bytes(), time.perf_counter()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        _folder(options.one, options), dtype=getattr(torch, THEIRS[options.one])
    ).eval()
    load_s = time.perf_counter() - began

    class Times:
        """What `generate` hands each token to: the prompt first."""

        def __init__(self) -> None:
            self.at: list[float] = []

        def put(self, _: object) -> None:
            self.at.append(time.perf_counter())

        def end(self) -> None:
            pass

    def answer(prompt_tokens: int, new_tokens: int) -> list[float]:
        ids = torch.randint(3, int(model.config.vocab_size), (1, prompt_tokens))
        times, began_s = Times(), time.perf_counter()
        with torch.inference_mode():
            model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, min_new_tokens=new_tokens,
                do_sample=False, eos_token_id=None, pad_token_id=0, streamer=times,
            )  # fmt: skip
        return [at - began_s for at in times.at[1:]]

    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    return {"load_s": round(load_s, 3), "before_bytes": before, "versions": versions}, answer, None


if __name__ == "__main__":
    raise SystemExit(main())
