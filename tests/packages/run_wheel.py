"""Installs the wheel where nothing else of ours is, and uses it as a person does: `make wheel-test`. Needs root.

Clean roots of Debian, each with its own Python and a user of its own; every other Python of PATH (or of --pythons) in a
fresh environment, with an empty home and no variables. There: pip install, a model by its name from a hub of our own, a
question over HTTP, Ctrl-C, and nothing may be left running. Then mistakes: each is one line. Prints a line for each
case; the exit status is 1 if one fails. What is installed stays in build/wheel-test until the wheel is another one.

`--stopwatch FOLDER ...` only measures: from `redoubt serve NAME` in an empty home to the first token, each
folder being a repository of the hub.
"""

import argparse
import errno
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from kuberay.image.debian import KEYRING, mirrors
from tests.hub import Hub, running_hub
from tests.service.running import descendants, free_port, wait_until, wait_until_all_are_gone
from tools.wheel import CANDIDATES, OLDEST

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build/wheel-test"
GGUF = ROOT / "models/smollm2-135m-instruct.gguf"
NAME = "org/smol"
"""The repository of our hub."""
SERVED = "smol-Q4_1"
READY_S = 600.0
SUITES = {"debian12": "bookworm", "debian13": "trixie"}
USER = "somebody"
USER_ID = 1000
# What pip needs of this machine to reach its index: files that go into a root, and variables.
_NETWORK_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
_NETWORK = re.compile(r"PIP_.*|(https?|no)_proxy|SSL_CERT_FILE|REQUESTS_CA_BUNDLE", re.IGNORECASE)
_ENTER = """
root=$1; shift
mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" && mount --rbind /sys "$root/sys" || exit 125
exec chroot --userspec=%d:%d "$root" "$@"
"""


def check(holds: bool, what: object) -> None:
    """Raises AssertionError with what was seen."""
    if not holds:
        raise AssertionError(str(what))


@dataclass(frozen=True, slots=True)
class Place:
    """Where the wheel is installed: a root, or this machine with an empty home."""

    folder: Path
    python: str
    """The interpreter of its own environment."""
    root: Path | None = None

    def command(self, *words: str, network: bool = False) -> list[str]:
        """One that runs there, in an empty folder, without this machine's variables; network: but for pip's."""
        home = f"/home/{USER}" if self.root else str(self.folder / "home")
        variables = {"HOME": home, "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
        variables |= {name: value for name, value in os.environ.items() if network and _NETWORK.fullmatch(name)}
        plain = ["env", "-i", f"--chdir={home}/work", *(f"{name}={value}" for name, value in variables.items()), *words]
        if self.root is None:
            return plain
        enter = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _ENTER % (USER_ID, USER_ID)]
        return [*enter, "enter", str(self.root), *plain]

    def run(self, *words: str, network: bool = False, timeout_s: float = 1200) -> subprocess.CompletedProcess[str]:
        """Runs it to its end; both outputs are one."""
        command = self.command(*words, network=network)
        return subprocess.run(
            command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout_s, check=False
        )

    def expect(self, *words: str, network: bool = False) -> str:
        """What it prints. Raises AssertionError where it does not end well."""
        done = self.run(*words, network=network)
        check(done.returncode == 0, f"{' '.join(words)}: status {done.returncode}: {done.stdout[-2000:]}")
        return done.stdout

    @property
    def program(self) -> str:
        """The installed command."""
        return f"{Path(self.python).parent}/redoubt"


@dataclass(slots=True)
class Bench:
    """The wheel, its digest and the hub."""

    wheel: Path
    hub: Hub
    pythons: dict[str, Path] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.wheel.read_bytes()).hexdigest()

    def place(self, name: str) -> Place:
        """Makes it, and installs the wheel as a person would; that of a former run where the wheel is the same."""
        folder = BUILD / name
        root = folder / "root" if name in SUITES else None
        place = Place(folder, f"/home/{USER}/env/bin/python" if root else str(folder / "home/env/bin/python"), root)
        stamp = folder / "installed"
        if stamp.exists() and stamp.read_text() == self.digest:
            return place
        shutil.rmtree(folder, ignore_errors=True)
        home = folder / "home" if root is None else root / "home" / USER
        if root is not None:
            make_root(root, SUITES[name])
        (home / "work").mkdir(parents=True)
        shutil.copy(self.wheel, home)
        if root is not None:
            for path in (home, home / "work", home / self.wheel.name):
                os.chown(path, USER_ID, USER_ID)
        interpreter = "/usr/bin/python3" if root is not None else str(self.pythons[name])
        inside = f"/home/{USER}" if root is not None else str(home)
        place.expect(interpreter, "-m", "venv", f"{inside}/env")
        pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{inside}/{self.wheel.name}")
        place.expect(place.python, *pip, network=True)
        stamp.write_text(self.digest)
        return place


def make_root(root: Path, suite: str) -> None:
    """A Debian with its smallest set of packages, Python and a user."""
    root.parent.mkdir(parents=True, exist_ok=True)
    command = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "mmdebstrap",
        "--variant=minbase",
        f"--keyring={KEYRING}",
    ]
    command += ["--include=python3-venv,ca-certificates"]
    command += [f'--customize-hook=chroot "$1" useradd --create-home --uid {USER_ID} {USER}', suite, str(root)]
    done = subprocess.run([*command, mirrors()[0]], capture_output=True, text=True, check=False)
    check(done.returncode == 0, f"mmdebstrap {suite}: {done.stderr[-2000:]}")
    for name in filter(os.path.exists, _NETWORK_FILES):
        Path(root, name[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(name, Path(root, name[1:]))


@contextmanager
def served(place: Place, hub: Hub, *words: str) -> Iterator[tuple[str, Path]]:
    """`redoubt serve` there: its address when it is ready, and its output. Ends it by Ctrl-C; nothing may be left."""
    port = free_port()
    log = place.folder / "log"
    serve = ("env", f"HF_ENDPOINT={hub.url}", place.program, "serve", *words, "--port", str(port))
    with log.open("wb") as output:
        process = subprocess.Popen(place.command(*serve), stdout=output, stderr=subprocess.STDOUT, process_group=0)
    try:
        wait_until(lambda: b"is ready" in log.read_bytes() or process.poll() is not None, "ready", READY_S)
        check(process.poll() is None, log.read_text())
        yield f"http://127.0.0.1:{port}", log
        family = descendants(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        check(process.wait(120) == 0, f"status {process.returncode} after Ctrl-C: {log.read_text()}")
        wait_until_all_are_gone(family)
        with socket.socket() as probe:
            check(probe.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED, "something still listens")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(120)


def chat(bench: Bench, name: str) -> str:
    """From the wheel to an answer, and what else a person tries first."""
    place = bench.place(name)
    version = place.expect(place.python, "--version").strip()
    module = place.expect(place.python, "-c", "import kernels._native as n; print(n.__file__)").strip()
    check(re.fullmatch(r"redoubt \S+", place.expect(place.program, "--version").strip()) is not None, "no version")
    check("qwen3-4b" in place.expect(place.program, "models", "--for-this-machine"), "no catalogue")
    place.expect(place.program, "bench", "serving", "--help")
    with served(place, bench.hub, NAME) as (url, log):
        body = {"model": SERVED, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
        answer = httpx.post(
            f"{url}/v1/chat/completions", json={**body, "temperature": 0, "max_tokens": 60}, timeout=300
        )
        text = answer.json()["choices"][0]["message"]["content"]
        check("Paris" in text, answer.text)
        check("<html" in httpx.get(f"{url}/", timeout=60).text, "no chat page")
        (seconds,) = re.findall(r"ready after (\d+) s", log.read_text())
    if place.root is not None:
        system = re.findall(r'PRETTY_NAME="(.*)"', Path(place.root, "etc/os-release").read_text())[0]
        version = f"{system}, {version}"
    return (
        f"{version}, {Path(module).name}: ready after {seconds} s, {text.splitlines()[0]!r}, nothing left after Ctrl-C"
    )


def stopwatch(bench: Bench, folder: Path) -> str:
    """Seconds from the command to the first token of an answer, nothing being fetched yet."""
    place = bench.place(next(iter(bench.pythons)))
    shutil.rmtree(place.folder / "home/.cache/redoubt", ignore_errors=True)
    repository = f"org/{folder.name}"
    bench.hub.add(repository, folder)
    began_s = time.monotonic()
    with served(place, bench.hub, repository) as (url, _):
        ready_s = time.monotonic() - began_s
        (model,) = (one["id"] for one in httpx.get(f"{url}/v1/models", timeout=60).json()["data"])
        body = {"model": model, "prompt": "The capital of France", "stream": True, "temperature": 0, "max_tokens": 8}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=300) as answer:
            check(answer.status_code == 200, answer.status_code)
            next(line for line in answer.iter_lines() if '"text":"' in line)
        first_s = time.monotonic() - began_s
    size = sum(path.stat().st_size for path in folder.rglob("*"))
    return f"{repository}, {size / 1e9:.2f} GB: ready after {ready_s:.1f} s, first token after {first_s:.1f} s"


def contents(bench: Bench) -> str:
    """What a user runs, and nothing else."""
    with zipfile.ZipFile(bench.wheel) as wheel:
        names = wheel.namelist()
        metadata = wheel.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    for needed in (
        "app/cli.py",
        "app/interface/web/dist/chat.html",
        "quant/catalogue.toml",
        "bench/serving.py",
        "kernels/_native/__init__.pyi",
        "ray_configs/local.yaml",
    ):
        check(needed in names, f"{needed} is missing")
    check(any(name.startswith("kernels/_native.") for name in names), "no native module")
    tops = {name.partition("/")[0] for name in names}
    check(all(top in ("app", "quant", "kernels", "bench", "ray_configs") or ".dist-info" in top for top in tops), tops)
    unwanted = re.compile(r"bench/(experiments|results)/|tests?/|.*\.(cc|h|ts|tsx|map)$|.*/node_modules/|.*/\.")
    found = [name for name in names if unwanted.match(name)]
    check(not found, f"not for users: {found[:5]}")
    check("Requires-Python: >=3.11" in metadata, metadata)
    return f"{len(names)} files, {bench.wheel.stat().st_size / 1e6:.1f} MB"


def one_line(done: subprocess.CompletedProcess[str], expected: str, status: Sequence[int] = (1, 2)) -> str:
    """The one line of a mistake."""
    lines = [line for line in done.stdout.splitlines() if line and not line.startswith("WARNING: ")]
    check(done.returncode in status and len(lines) == 1 and expected in lines[0], f"{done.returncode}: {done.stdout}")
    return lines[0]


def mistakes(bench: Bench) -> str:
    """Machines that the wheel is not for, and what a person leaves out."""
    place = bench.place(next(iter(SUITES)))
    pip = (place.python, "-m", "pip", "install", "--no-deps", "--only-binary", ":all:", "--target", "/tmp/other")
    wheel = f"/home/{USER}/{bench.wheel.name}"
    refused = "is not a supported wheel on this platform"
    said = [
        one_line(place.run(*pip, "--python-version", f"3.{OLDEST - 1}", wheel), refused),
        one_line(place.run(*pip, "--platform", "manylinux_2_39_aarch64", wheel), refused),
        one_line(place.run(place.program, "serve"), "name a model to serve, as in `redoubt serve qwen3-4b`"),
        one_line(place.run(place.program, "serve", "--config", "none.yaml"), "none.yaml"),
    ]
    hub = f"HF_ENDPOINT={bench.hub.url}"
    soft = ("env", hub, "REDOUBT_ALLOW_SOFT_EVIDENCE=1", place.program, "serve", NAME, "--attest", "soft")
    said.append(error_line(place.run(*soft), "apt-get install haproxy"))
    absent = (
        "env",
        hub,
        "RAY_SERVE_HAPROXY_BINARY_PATH=/none",
        place.program,
        "serve",
        NAME,
        "--port",
        str(free_port()),
    )
    said.append(error_line(place.run(*absent), "HAProxy: RAY_SERVE_HAPROXY_BINARY_PATH"))
    return "\n  ".join(["each is one line:", *said])


def error_line(done: subprocess.CompletedProcess[str], expected: str) -> str:
    """The one line of a mistake among those of a start."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("redoubt: ")]
    is_well = done.returncode in (1, 2) and len(lines) == 1 and expected in lines[0]
    check(is_well and "Traceback" not in done.stdout, f"{done.returncode}: {done.stdout}")
    return lines[0]


def old_processor(bench: Bench) -> str:
    """A processor without AVX2, emulated, with this machine's own Python."""
    name = next(iter(bench.pythons))
    place = bench.place(name)
    python = os.path.realpath(bench.pythons[name])
    site = place.expect(place.python, "-c", "import site; print(site.getsitepackages()[0])").strip()
    emulated = ("env", f"PYTHONPATH={site}", "qemu-x86_64", "-cpu", "Nehalem", python, "-m", "app.cli", "serve", NAME)
    return one_line(place.run(*emulated), "has no AVX2, which the engine needs", (2,))


def main() -> None:
    """Runs the named cases, or all."""
    parser = argparse.ArgumentParser(description="Install the wheel in clean places, and use it.")
    parser.add_argument(
        "cases", nargs="*", help=f"of: contents, {', '.join(SUITES)}, python3.x, mistakes, old-processor"
    )
    parser.add_argument("--wheel", type=Path, default=ROOT / "build/dist", help="its folder")
    parser.add_argument("--pythons", default="", help="interpreters for fresh environments (default: those of PATH)")
    parser.add_argument("--install", action="store_true", help="only install")
    parser.add_argument("--stopwatch", nargs="+", type=Path, default=[], help="only measure these folders")
    options = parser.parse_args()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a job in the background has it ignored, and so its children
    wheels = list(options.wheel.glob("redoubt-*.whl"))
    if len(wheels) != 1:
        sys.exit(f"make wheel-test: {options.wheel} has {len(wheels)} wheels, not one: make wheel")
    pythons = find_pythons(options.pythons.split() or CANDIDATES)
    failed = 0
    with running_hub() as hub:
        files = BUILD / "hub"
        files.mkdir(parents=True, exist_ok=True)
        (link := files / f"{GGUF.stem}-Q4_1.gguf").unlink(missing_ok=True)
        link.symlink_to(GGUF)
        hub.add(NAME, files)
        bench = Bench(wheels[0].absolute(), hub, pythons)
        cases: dict[str, Callable[[], str]] = {"contents": lambda: contents(bench)}
        for name in (*SUITES, *pythons):
            cases[name] = lambda name=name: chat(bench, name)  # type: ignore[misc]
        cases |= {"mistakes": lambda: mistakes(bench), "old-processor": lambda: old_processor(bench)}
        if options.stopwatch:
            cases = {f"stopwatch {path.name}": lambda path=path: stopwatch(bench, path) for path in options.stopwatch}  # type: ignore[misc]
        for name in options.cases or cases:
            try:
                if options.install:
                    bench.place(name)
                print(f"passed: {name}: {'installed' if options.install else cases[name]()}", flush=True)
            except (AssertionError, OSError, subprocess.SubprocessError, httpx.HTTPError) as error:
                failed += 1
                print(f"FAILED: {name}: {error}", flush=True)
    sys.exit(1 if failed else 0)


def find_pythons(candidates: Sequence[str]) -> dict[str, Path]:
    """The interpreters that the wheel is for, by name: `python3.12`."""
    found: dict[str, Path] = {}
    probe = "import sys; print(sys.version_info[1], sys.executable)"
    for candidate in candidates:
        if (path := shutil.which(candidate)) is not None:
            done = subprocess.run([path, "-c", probe], capture_output=True, text=True, check=False)
            if done.returncode == 0 and int(minor := done.stdout.split()[0]) >= OLDEST:
                found.setdefault(f"python3.{minor}", Path(done.stdout.split()[1]))
    return found


if __name__ == "__main__":
    main()
