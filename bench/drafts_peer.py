"""llama.cpp's server with a draft model, for `redoubt bench drafts --pair`: the same two models, one answer at a time.

It is started without and with the draft model, and asked the same prompts, as tokens. Does not know what ours does.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.common import ROOT
from bench.processes import free_port

_START_TIMEOUT_S = 120.0
_ANSWER_TIMEOUT_S = 1800.0


def bf16_gguf(source: Path, out: Path) -> Path:
    """Writes a GGUF with the same weights in bf16, once; norms and other vectors stay as they are."""
    import gguf
    from gguf import quants

    if out.exists():
        return out
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    partial = out.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, architecture)
    for name, found in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = found.types[0]
        writer.add_key_value(name, found.contents(), kind, found.types[-1] if len(found.types) > 1 else None)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    for tensor in reader.tensors:
        values = quants.dequantize(tensor.data, tensor.tensor_type)
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values)
        else:
            bf16 = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(tensor.name, quants.quantize(values, bf16), raw_dtype=bf16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(out)
    return out


class PeerRounds:
    """Rounds of llama.cpp's server with the same two models, without and with its drafts, beside ours."""

    def __init__(
        self,
        options: argparse.Namespace,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        context_tokens: int,
        temperature: float,
    ) -> None:
        """options: those of `redoubt bench drafts`, with `peer` and `ggufs`."""
        target, draft = (path.absolute() for path in options.ggufs)
        drafting = ("--draft", str(draft))
        kinds = {"without": (), "default": drafting, "8 at once": (*drafting, "--draft-tokens", "8")}
        self._kinds: dict[str, tuple[str, ...]] = kinds
        self._start = options.peer.absolute(), target, options.threads, context_tokens
        self._prompts, self._new_tokens, self._temperature = prompts, new_tokens, temperature
        self._runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}

    def play(self) -> None:
        """One round: each kind of server is started, asked and ended. Raises OSError, ValueError."""
        for kind, more in self._kinds.items():
            with server(*self._start, more) as url:
                decode_speed(url, self._prompts[:1], 8, self._temperature)
                self._runs[kind].append(decode_speed(url, self._prompts, self._new_tokens, self._temperature))

    def found(self) -> list[dict[str, Any]]:
        """Medians of the rounds, and ratios to the same round without drafts; the counts are of all rounds."""
        rows = []
        without = [one["tokens_per_s"] for one in self._runs["without"]]
        for kind, runs in self._runs.items():
            speeds = [one["tokens_per_s"] for one in runs]
            ratios = sorted(speed / alone for speed, alone in zip(speeds, without, strict=True))
            row = {
                "drafts": kind,
                "temperature": self._temperature,
                "tokens_per_s": statistics.median(speeds),
                "ratio": round(statistics.median(ratios), 3),
                "ratios": [round(ratio, 3) for ratio in ratios],
                **{name: sum(one[name] for one in runs) for name in ("drafted", "right")},
            }
            rows.append(row)
            print(row, file=sys.stderr, flush=True)
        return rows


@contextmanager
def server(python: Path, target: Path, threads: int, context_tokens: int, options: Sequence[str]) -> Iterator[str]:
    """The running server's URL. python: of an environment with xllamacpp. Raises OSError if it does not start."""
    port = free_port()
    arguments = ["--port", str(port), "--threads", str(threads), "--slots", "1", "--context", str(context_tokens)]
    command = [str(python), "-m", "bench.peers.llama_server", str(target), *arguments, *options]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end_s = time.monotonic() + _START_TIMEOUT_S
        while not _is_healthy(f"http://127.0.0.1:{port}/health"):
            if process.poll() is not None or time.monotonic() > end_s:
                raise OSError(f"llama.cpp's server did not start: {' '.join(command)}")
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def decode_speed(url: str, prompts: Sequence[Sequence[int]], new_tokens: int, temperature: float) -> dict[str, Any]:
    """Tokens per second of all answers after their first tokens, as the server says, and its counts of drafts."""
    seconds = tokens = drafted = right = 0.0
    for seed, prompt in enumerate(prompts):
        body = {"prompt": list(prompt), "n_predict": new_tokens, "temperature": temperature, "seed": seed}
        body |= {"cache_prompt": False, "ignore_eos": True, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        request = urllib.request.Request(
            f"{url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=_ANSWER_TIMEOUT_S) as response:
            timings = json.load(response).get("timings")
        if not timings:
            raise ValueError("llama.cpp's server answers without its timings")
        seconds += timings["predicted_ms"] / 1e3
        tokens += timings["predicted_n"]
        drafted += timings.get("draft_n", 0)
        right += timings.get("draft_n_accepted", 0)
    return {"tokens_per_s": round(tokens / seconds, 2), "drafted": int(drafted), "right": int(right)}
