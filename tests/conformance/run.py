"""`make conformance`: clients of other projects, against a real service with the embedded model.

    python -m tests.conformance.run [CLIENT...] [--url http://...] [--model NAME] [--no-write]

Each client has an environment of its own (build/conformance/CLIENT), because their requirements contradict each other,
and a file of tests in clients/, which pytest runs there. The results go to results.json and, as a table, to
docs/agents.md. With --url no service is started. Knows the name and the packages of each client, nothing of its tests.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tests.conformance import lm_eval_task
from tests.conformance.table import RESULTS, with_table
from tests.listening import listens
from tests.service.running import ROOT, free_port, started_service, wait_until, write_config

HERE = Path(__file__).parent
BUILD = ROOT / "build" / "conformance"
MODEL = ROOT / "models" / "smollm2-135m-instruct"
ENCODER = ROOT / "models" / "all-minilm-l6-v2"
LONGEST_S = 1800


@dataclass(frozen=True, slots=True)
class Client:
    """One environment and its tests."""

    name: str
    packages: tuple[str, ...]
    """The packages whose versions go into the results."""
    pytest_options: tuple[str, ...] = ()
    node_packages: tuple[str, ...] = ()
    """The same of npm's; their pinned names are in requirements/CLIENT.npm."""
    is_agent: bool = False
    """Whether its tests have a service whose model is a script, in place of the embedded model."""
    has_script: bool = False
    """Whether they have that beside the embedded model."""

    @property
    def requirements(self) -> list[Path]:
        """The files that say what is installed."""
        folder = HERE / "requirements"
        return [folder / f"{self.name}.txt", *([folder / f"{self.name}.npm"] if self.node_packages else [])]


LANGCHAIN_OPTIONS = (
    "--override-ini=asyncio_mode=auto",
    # langchain-openai keeps one asynchronous connection pool for all its models.
    "--override-ini=asyncio_default_fixture_loop_scope=session",
    "--override-ini=asyncio_default_test_loop_scope=session",
    "--benchmark-disable",
)
CLIENTS = (
    Client("openai", ("openai",)),
    Client("anthropic", ("anthropic",), has_script=True),
    Client("anthropic_node", (), node_packages=("@anthropic-ai/sdk",), is_agent=True),
    Client("langchain", ("langchain-openai", "langchain-tests"), LANGCHAIN_OPTIONS),
    Client("instructor", ("instructor",)),
    Client("litellm", ("litellm",)),
    Client("schemathesis", ("schemathesis",)),
    Client("lm_eval", ("lm_eval",)),
    Client("codex", (), node_packages=("@openai/codex",), is_agent=True),
    Client("claude_code", (), node_packages=("@anthropic-ai/claude-code",), is_agent=True),
    Client("opencode", (), node_packages=("opencode-ai",), is_agent=True),
    Client("qwen_code", (), node_packages=("@qwen-code/qwen-code",), is_agent=True),
    Client("pi", (), node_packages=("@earendil-works/pi-coding-agent",), is_agent=True),
    Client("cline", (), node_packages=("cline",), is_agent=True),
    Client("continue", (), node_packages=("@continuedev/cli",), is_agent=True),
    Client("aider", ("aider-chat",), is_agent=True),
    Client("mini_swe_agent", ("mini-swe-agent",), is_agent=True),
    Client("llm", ("llm",), is_agent=True),
    Client("open_webui", ("open-webui",)),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the clients that are named, or all; 1 where one of them failed."""
    options = _parser().parse_args(arguments)
    clients = [client for client in CLIENTS if not options.clients or client.name in options.clients]
    pythons = {client.name: _environment(client) for client in clients}
    with _service(options, is_needed=not all(client.is_agent for client in clients)) as (url, model):
        results = [_run(client, pythons[client.name], url, model) for client in clients]
    if not options.no_write:
        _write(results, model)
    for result in results:
        for failure in result["failed"]:
            print(f"{result['client']}: {failure} FAILED")
    return int(any(result["failed"] for result in results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make conformance", description=__doc__.splitlines()[0])
    parser.add_argument("clients", nargs="*", choices=[[], *(client.name for client in CLIENTS)], metavar="CLIENT")
    parser.add_argument("--url", help="a service that runs already, without /v1")
    parser.add_argument("--model", default=MODEL.name, help="what it serves (default %(default)s)")
    parser.add_argument("--no-write", action="store_true", help="leave results and documentation as they are")
    return parser


def _environment(client: Client) -> Path:
    """The client's interpreter; installed again when its requirements have changed."""
    folder = BUILD / client.name
    python = folder / "bin" / "python"
    stamp = folder / "installed"
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in client.requirements)).hexdigest()
    if not stamp.exists() or stamp.read_text() != digest:
        print(f"Installing {client.name} into {folder.relative_to(ROOT)}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        # Everything is pinned, so nothing has to be resolved.
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--requirement", str(client.requirements[0])], check=True)
        if client.node_packages:
            _install_node_packages(folder, client.requirements[1])
        stamp.write_text(digest)
    return python


def _install_node_packages(folder: Path, requirements: Path) -> None:
    npm = ["npm", "install", "--prefix", str(folder / "node"), "--no-audit", "--no-fund", "--loglevel=error"]
    environment = os.environ | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    subprocess.run([*npm, *requirements.read_text().split()], env=environment, check=True)


@contextmanager
def _scripted(client: Client, work: Path) -> Iterator[str]:
    """The address of a service whose model is a script; empty for a client that needs none."""
    if not (client.is_agent or client.has_script):
        yield ""
        return
    port = free_port()
    command = [sys.executable, "-m", "tests.conformance.scripted", "--port", str(port), "--work", str(work)]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        wait_until(lambda: listens("127.0.0.1", port) or process.poll() is not None, "the scripted service", 60)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def _service(options: argparse.Namespace, *, is_needed: bool) -> Iterator[tuple[str, str]]:
    if options.url or not is_needed:
        yield options.url or "", options.model
        return
    with tempfile.TemporaryDirectory(prefix="redoubt-conformance-") as folder:
        config = write_config(Path(folder) / "service.yaml", {"ingress": {"default_max_tokens": 128}})
        models = ("--model", str(MODEL), "--model", str(ENCODER))
        with started_service(config, Path(folder) / "log", MODEL.name, *models) as service:
            wait_until(lambda: len(service.alive()) == 2, "both models")
            yield service.url, service.model


def _run(client: Client, python: Path, url: str, model: str) -> dict[str, Any]:
    work = BUILD / f"{client.name}-work"
    work.mkdir(parents=True, exist_ok=True)
    if client.name == "lm_eval":
        lm_eval_task.prepare(work, MODEL, url, model)
    report = work / "junit.xml"
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "-c", str(HERE / "clients" / "pytest.ini"), f"--junitxml={report}"]
    command += [*client.pytest_options, "-q", str(HERE / "clients" / f"{client.name}_client.py")]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {"REDOUBT_URL": url, "REDOUBT_MODEL": model, "REDOUBT_WORK": str(work)}
    environment["REDOUBT_ENCODER"] = ENCODER.name
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    print(f"--- {client.name}", flush=True)
    folder = python.parent.parent
    programs = [folder / "bin", folder / "node" / "node_modules" / ".bin"]
    environment["PATH"] = ":".join([*map(str, programs), environment["PATH"]])
    with _scripted(client, work) as scripted_url:
        environment["REDOUBT_SCRIPTED_URL"] = scripted_url
        subprocess.run(command, cwd=HERE / "clients", env=environment, timeout=LONGEST_S, check=False)
    versions = {package: _version(python, package) for package in client.packages}
    versions |= {package: _node_version(folder, package) for package in client.node_packages}
    result = {"client": client.name, "versions": versions} | outcomes(report)
    return result | ({"prompt_tokens": _longest_prompt(work)} if client.is_agent else {})


def _longest_prompt(work: Path) -> int:
    """Its tokens for the embedded model, of the last test; 0 if there was none."""
    written = work / "prompts.jsonl"
    if not written.exists():
        return 0
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    return max(len(tokenizer.encode(json.loads(line)).ids) for line in written.read_text().splitlines())


def _version(python: Path, package: str) -> str:
    code = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def _node_version(folder: Path, package: str) -> str:
    described = json.loads((folder / "node" / "node_modules" / package / "package.json").read_text())
    return str(described["version"])


def outcomes(report: Path) -> dict[str, Any]:
    """What pytest's JUnit file says: passed and failed tests, and those that were not to pass, with the reason."""
    result: dict[str, Any] = {"passed": 0, "expected_failures": {}, "skipped": {}, "failed": []}
    if not report.exists():
        return result | {"failed": ["pytest itself"]}
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.get("name", "")
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            result["failed"].append(name)
        elif skipped is None:
            result["passed"] += 1
        else:
            kind = "expected_failures" if skipped.get("type") == "pytest.xfail" else "skipped"
            result[kind][name] = skipped.get("message", "")
    return result


def _write(results: Sequence[dict[str, Any]], model: str) -> None:
    """Results of the clients that ran; those of the others stay."""
    kept = json.loads(RESULTS.read_text())["clients"] if RESULTS.exists() else []
    by_name = {result["client"]: result for result in [*kept, *results]}
    clients = [by_name[client.name] for client in CLIENTS if client.name in by_name]
    RESULTS.write_text(json.dumps({"model": model, "clients": clients}, indent=1) + "\n")
    page = ROOT / "docs" / "agents.md"
    page.write_text(with_table(page.read_text()))


if __name__ == "__main__":
    sys.exit(main())
