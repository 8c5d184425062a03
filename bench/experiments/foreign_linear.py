"""Checks and times torchao's and IPEX's kernels in place of ours, on a whole transformers model.

    python -m bench.experiments.foreign_linear MODEL [--backend torchao,ipex] [--json]

MODEL is a converted folder. It is exported; then each library gets an environment of its own (`--environments`), where
`RedoubtConfig(backend=...)` runs the model. `logits_error` is the difference of its logits from those of the same
rounded weights as floats, relative to their norm: 1e-6 for kernels that compute in fp32, some 1e-2 for ours, whose
activations are int8. Exactly 0 is no int4 kernel: the library unpacked the weights and called torch's own product, as
IPEX 2.8 does on AMD. `tokens_per_s` is greedy decoding by transformers. For a library that can't be installed or
crashes, the reason is reported instead of figures.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from bench.peers import Environment, InstallError

ROOT: Final = Path(__file__).parents[2]
TIMEOUT_S: Final = 900.0
PROMPT_TOKENS: Final = 64
NEW_TOKENS: Final = 32
NO_KERNEL: Final = "no int4 kernel ran: the weights were unpacked and multiplied as floats, bit for bit torch's result"
ENVIRONMENTS: Final[Mapping[str, Environment]] = MappingProxyType(
    {
        "torchao": Environment(
            name="torchao",
            steps=(("torch==2.13.0",), ("torchao==0.18.0", "transformers==5.23.0", "numpy", "tqdm")),
        ),
        "ipex": Environment(
            name="ipex",
            steps=(
                ("torch==2.8.0", "intel-extension-for-pytorch==2.8.0", "transformers==4.51.3", "accelerate==1.6.0"),
                ("numpy", "tqdm"),
            ),
        ),
    }
)


def run_model(folder: Path, backend: str, qtype: str, group: int) -> dict[str, Any]:
    """Runs the exported model with the library's kernels, and the rounded weights as floats, in its environment."""
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    layers: Any = import_module("quant.transformers_bridge.torch_linear")
    config_type: Any = import_module("quant.transformers_bridge.transformers_backend").RedoubtConfig
    dequantize: Any = import_module("quant.codes.dequantize").dequantize

    torch.manual_seed(0)
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(folder, quantization_config=config_type(qtype=qtype, group_size=group, backend=backend)).eval()
    floats = load(folder).eval()
    replaced = 0
    for name, module in floats.named_modules():
        if type(module) is torch.nn.Linear and type(model.get_submodule(name)) is not torch.nn.Linear:
            rounded = dequantize(layers.round_weight(name, module.weight, qtype, group))
            module.weight = torch.nn.Parameter(torch.from_numpy(rounded), requires_grad=False)
            replaced += 1
    ids = torch.randint(10, int(floats.config.vocab_size) - 10, (1, PROMPT_TOKENS))
    with torch.inference_mode():
        exact, ours = floats(ids).logits.double(), model(ids).logits.double()
        began_s = time.perf_counter()
        model.generate(ids, max_new_tokens=1, min_new_tokens=1, do_sample=False)
        first_s = time.perf_counter() - began_s
        began_s = time.perf_counter()
        model.generate(ids, max_new_tokens=1 + NEW_TOKENS, min_new_tokens=1 + NEW_TOKENS, do_sample=False)
        rest_s = time.perf_counter() - began_s - first_s
    error = float((ours - exact).norm() / exact.norm())
    return {
        "layers": replaced,
        "logits_error": error,
        **({} if error else {"note": NO_KERNEL}),
        "tokens_per_s": round(NEW_TOKENS / rest_s, 1),
        "versions": {name: version(name) for name in ("torch", "transformers")},
    }


def measure(model: Path, backends: Sequence[str], environments: Path) -> dict[str, Any]:
    """Measures every backend, and our kernels in its environment. Raises QuantError if the model can't be exported."""
    from quant.conversion.export import export
    from quant.packed.packed_file import FILE_NAME, PackedFile

    metadata = PackedFile(model / FILE_NAME).metadata
    qtype, group = str(metadata["qtype"]), int(metadata["group_size"])
    results: dict[str, Any] = {"model": model.name, "qtype": qtype, "group_size": group, "backends": {}}
    with tempfile.TemporaryDirectory(prefix="redoubt-foreign-") as temporary:
        folder = Path(temporary) / "exported"
        export(model, folder, progress=False)
        for backend in backends:
            environment = ENVIRONMENTS[backend]
            try:
                environment.install(environments)
            except InstallError as error:
                results["backends"][backend] = {"missing": str(error)}
                continue
            python = environment.python(environments).absolute()
            types = (qtype, "sym_int4") if backend == "ipex" and qtype != "sym_int4" else (qtype,)
            for name in (backend, "redoubt"):
                title = f"{name} (torch of {backend})" if name == "redoubt" else name
                results["backends"][title] = _child(python, folder, name, types[-1], group)
    return results


def _child(python: Path, folder: Path, backend: str, qtype: str, group: int) -> dict[str, Any]:
    command = [str(python), "-m", "bench.experiments.foreign_linear", str(folder), "--run", backend, "--qtype", qtype]
    command += ["--group", str(group)]
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    if ended.returncode != 0:
        return {"crashed": ended.stderr.strip()[-1500:]}
    values: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return {"qtype": qtype} | values


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status: 1 where a library is missing or crashed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, metavar="MODEL", help="a converted folder")
    parser.add_argument("--backend", default=",".join(ENVIRONMENTS), help="which, with commas (default %(default)s)")
    parser.add_argument("--environments", type=Path, default=ROOT / "build" / "peers", help="(default: build/peers)")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of an indented one")
    for option in ("--run", "--qtype", "--group"):  # in a library's environment
        parser.add_argument(option, help=argparse.SUPPRESS)
    parsed = parser.parse_args(arguments)
    if parsed.run:
        print(json.dumps(run_model(parsed.model, parsed.run, parsed.qtype, int(parsed.group))))
        return 0
    backends = parsed.backend.split(",")
    unknown = set(backends) - set(ENVIRONMENTS)
    if unknown:
        parser.error(f"--backend: {', '.join(sorted(unknown))}: not one of {', '.join(ENVIRONMENTS)}")
    results = measure(parsed.model, backends, parsed.environments)
    print(json.dumps(results, indent=None if parsed.json else 1))
    return int(any("logits_error" not in result for result in results["backends"].values()))


if __name__ == "__main__":
    sys.exit(main())
