"""llama.cpp's server with a draft model, for `redoubt bench drafts --pair`: the same two models, one answer at a time.

It is started without and with the draft model, and asked the same prompts, as tokens. Does not know what ours does.
"""

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.common import ROOT
from bench.processes import free_port

_START_TIMEOUT_S = 120.0
_ANSWER_TIMEOUT_S = 300.0


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


@contextmanager
def server(python: Path, target: Path, threads: int, options: Sequence[str]) -> Iterator[str]:
    """The running server's URL. python: of an environment with xllamacpp. Raises OSError if it does not start."""
    port = free_port()
    arguments = ["--port", str(port), "--threads", str(threads), "--slots", "1", "--context", "1024", *options]
    command = [str(python), "-m", "bench.peers.llama_server", str(target), *arguments]
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
            timings = json.load(response)["timings"]
        seconds += timings["predicted_ms"] / 1e3
        tokens += timings["predicted_n"]
        drafted += timings.get("draft_n", 0)
        right += timings.get("draft_n_accepted", 0)
    return {"tokens_per_s": round(tokens / seconds, 2), "drafted": int(drafted), "right": int(right)}
