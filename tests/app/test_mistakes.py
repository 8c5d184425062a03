"""What a new user gets wrong: each is one line on stderr that says what to do, at once, and nothing is started."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from typer.testing import CliRunner

from app.cli import cli
from tests.app.tiny_model import write_model
from tests.quant.checkpoints import CONFIG, random_tensors, write_hf_folder
from tests.service.running import free_port

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where relative paths of the cases begin: models, checkpoints, and what is neither."""
    place = tmp_path_factory.mktemp("place")
    write_model(place / "model")
    checkpoint = write_hf_folder(place / "hf", random_tensors(CONFIG))
    (place / "empty").mkdir()
    (place / "ray_configs").mkdir()
    shutil.copy(ROOT / "ray_configs/local.yaml", place / "ray_configs")
    (place / "file").write_text("hello")
    (place / "cut.gguf").write_bytes(b"GGUF\x03\0\0\0")

    def variant(name: str, change: Callable[[Path], object]) -> None:
        change(Path(shutil.copytree(checkpoint, place / name)))

    variant("mamba", lambda folder: (folder / "config.json").write_text(json.dumps({**CONFIG, "model_type": "mamba"})))
    variant("damaged", lambda folder: os.truncate(folder / "model.safetensors", 5000))
    variant("wordless", lambda folder: (folder / "tokenizer.json").write_text("{"))
    variant("sharded", lambda folder: (folder / "model.safetensors").rename(folder / "model-1-of-1.safetensors"))

    def config(name: str, **sections: Any) -> None:
        values = yaml.safe_load((ROOT / "ray_configs/local.yaml").read_text())
        values["applications"][0]["args"] = {"model": {"folder": str(place / "model")}, **sections}
        (place / name).write_text(yaml.safe_dump(values))

    (place / "bad.yaml").write_text("applications:\n\t- name: a\n")
    config("typo.yaml", wroker={"count": 2})
    config("words.yaml", worker={"count": "two"})
    config("keys.yaml", ingress={"api_key_file": str(place / "empty")})
    config("users.yaml", accounts={"database": f"sqlite:///{place}/a.db", "key": f"file://{place}/none"})
    config("pages.yaml", memory={"folder": str(place / "file" / "pages")})
    for name in ("none", "file", "empty", "hf"):
        config(f"{name}-named.yaml", model={"folder": str(place / name)})
    return place


CASES = [
    ("sevre", "No such command 'sevre'. Did you mean 'serve'"),
    ("frobnicate", "see redoubt -h"),
    ("serve --prot 1", "No such option: --prot (Possible options: --host, --improve, --port); see redoubt serve -h"),
    ("serve --port abc", "'--port'"),
    ("pull", "Missing argument 'NAME'; see redoubt pull -h"),
    ("pull model extra", "unexpected extra argument(s) (extra); see redoubt pull -h"),
    ("models rm none", "none: is no file or folder here, no entry of the catalogue"),
    ("models update ./model", "./model: is a path, and has no newer revision"),
    ("key crate", "No such command 'crate'"),
    ("serve --config none.yaml", "none.yaml: No such file or directory; name a model to serve, as in `redoubt serve"),
    ("serve --config empty", "empty: Is a directory"),
    ("serve --config file", "file: not a mapping of settings, as ray_configs/local.yaml is"),
    ("serve --config bad.yaml", "bad.yaml, line 2, column 1: not YAML: found character '\\t'"),
    ("serve --config env:REDOUBT_NONE", "there is no environment variable REDOUBT_NONE"),
    ("serve --config typo.yaml", "applications.0.args.wroker: there is no such setting"),
    ("serve --config words.yaml", "worker.count: Input should be a valid integer"),
    ("serve --config keys.yaml --port {port}", "ingress.api_key_file {place}/empty: Is a directory"),
    ("serve --config users.yaml --port {port}", "accounts.key file://{place}/none: No such file or directory"),
    ("serve --config pages.yaml --port {port}", "memory.folder: {place}/file/pages: Not a directory"),
    ("serve --config none-named.yaml", "model.folder: {place}/none: there is no such folder"),
    ("serve --config file-named.yaml", "{place}/file is a file, and no folder of a converted model"),
    ("serve --config empty-named.yaml", "{place}/empty is not a converted model: it has no config.json"),
    ("serve --config hf-named.yaml", "Convert it first: redoubt convert {place}/hf {place}/hf-int4"),
    ("serve none", "none: is no file or folder here, no entry of the catalogue"),
    ("serve file", "file: is not a GGUF file"),
    ("serve cut.gguf", "cut.gguf: ends inside its header"),
    ("serve --model empty", "empty: has no config.json; give a Hugging Face model folder"),
    ("serve --model sharded", "sharded: its weights are in model-1-of-1.safetensors"),
    ("serve --model model --host 8.8.8.8", "cannot listen on 8.8.8.8:8000: Cannot assign requested address"),
    ("convert", "Missing argument 'SRC'; see redoubt convert -h"),
    ("convert none out", "none: is no file or folder here"),
    ("convert empty out", "empty: has no config.json; give a Hugging Face model folder"),
    ("convert file out", "file: is not a GGUF file"),
    ("convert cut.gguf out", "cut.gguf: ends inside its header"),
    ("convert mamba out", "model type 'mamba' is not supported; supported: llama"),
    ("convert damaged out", "damaged/model.safetensors: "),
    ("convert wordless out", "wordless/tokenizer.json: is not a tokenizer"),
    ("convert hf file", "file: exists already; give another place, or --force to replace it"),
    ("convert hf file/out", "file/out: can't be made: file: File exists"),
    ("convert hf out --calibrate empty", "empty: is a folder, not a file"),
    ("convert hf out --bits 99", "bits 99: int8, the largest type of a budget, takes 8.5 bits a weight"),
    ("convert hf out --bits nan", "bits nan: "),
    ("convert hf out --method magic", "'magic' is not one of 'auto', 'rtn'"),
    ("export hf out", "hf: is not a converted model"),
    ("seal model out --key none", "none: No such file or directory; `redoubt seal --new-key` makes a key"),
    ("keygen file", "file: File exists"),
    ("memory check none", "none/v1: No such file or directory"),
    ("certificate none out --address 127.0.0.1", "none/tls.crt: not a readable certificate: No such file or directory"),
    ("chat --url http://127.0.0.1:1", "is the service running? (`redoubt serve`)"),
    ("bench frob", "there is no bench 'frob'"),
    ("bench engine", "the following arguments are required: MODEL, --threads; see redoubt bench engine -h"),
    ("bench engine model --threads x", "argument --threads: invalid"),
    ("bench engine none --threads 1", "none/"),
    ("bench kernels --thread x", "see redoubt bench kernels -h"),
    ("bench serving model --threads 1 --frob", "unrecognized arguments: --frob; see redoubt bench serving -h"),
    ("bench faults --frob", "see redoubt bench faults -h"),
    ("bench memory", "see redoubt bench memory -h"),
    ("bench cluster --frob", "see redoubt bench cluster -h"),
    ("bench confidential", "see redoubt bench confidential -h"),
    ("bench compare --threads 0", "see redoubt bench compare -h"),
    ("eval frob", "argument WHAT: invalid choice: 'frob'"),
    ("eval perplexity", "the following arguments are required: MODEL, --text; see redoubt eval perplexity -h"),
    ("eval perplexity none --text file", "none"),
    ("verify", "the following arguments are required: --policy; see redoubt verify -h"),
    ("verify --frob", "see redoubt verify -h"),
    ("verify https://localhost:1 --policy none.toml", "none.toml"),
    ("verify --policy none.toml --at x --offline file", "argument --at: invalid"),
    ("proxy", "the following arguments are required: url, --policy; see redoubt proxy -h"),
    ("policy", "see redoubt policy -h"),
    ("policy build", "the following arguments are required: evidence; see redoubt policy build -h"),
    ("policy show file", "file"),
    ("collateral none --out out", "none"),
    ("node worker", "a worker needs the head's address: --address HOST:6379"),
]


@pytest.mark.parametrize(("line", "said"), CASES, ids=[line.split(" --port")[0] for line, _ in CASES])
def test_one_line(line: str, said: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.delenv("FQ_RAY_IP", raising=False)
    values = {"place": str(place), "port": str(free_port())}
    before = sorted(place.iterdir())
    result = CliRunner().invoke(cli, line.format_map(values).split())
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("redoubt: ")
    assert said.format_map(values) in result.stderr
    assert sorted(place.iterdir()) == before


def test_a_converted_model_is_not_converted_again(embedded_model: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["convert", str(embedded_model), str(tmp_path / "out")])
    assert result.exit_code == 2
    assert f"is a converted model already: redoubt serve --model {embedded_model}" in result.stderr


def test_an_instruction_set_that_is_not_there(place: Path) -> None:
    """In a process of its own: the engine reads the variable once."""
    command = [sys.executable, "-m", "app.cli", "serve", "--port", str(free_port()), "--model", str(place / "model")]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "REDOUBT_ISA": "avx1024"}, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("redoubt: REDOUBT_ISA: unknown kernel tier 'avx1024'; this machine has: scalar")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
