"""Runs the built image under runc, locked down as a restricted pod: `make image-test`. Needs root.

Each role from the image's own entry point: `serve` answers a chat on one core, `proxy` verifies it first, `convert`
converts a GGUF file, Ray's dashboard takes a PUT, a head and two workers of one core make a cluster, and mistakes end
with one line. Prints a line for each; the exit status is 1 if one fails.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.cluster.operator import Operator, request
from bench.cluster.pods import Network, wait_until
from tests.cloud.containers import USER_ID, Container, Pod, Volume, unpack
from tests.cloud.test_cluster import QUESTION, TOKEN, cluster_configuration

ROOT = Path(__file__).parents[2]
MODEL = "smollm2-135m-instruct"
READY_S = 300
_REQUEST = """
import json, sys, urllib.request
method, url, body = sys.argv[1:]
request = urllib.request.Request(url, body.encode() or None, {"Content-Type": "application/json"}, method=method)
print(urllib.request.urlopen(request, timeout=120).read().decode())
"""


@contextmanager
def network(name: str) -> Iterator[Path]:
    """A network namespace with a loopback interface and nothing else."""
    subprocess.run(["ip", "netns", "delete", name], capture_output=True)
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-netns", name, "link", "set", "lo", "up"], check=True)
        yield Path("/run/netns") / name
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


class Bench:
    """The unpacked image, a folder for bundles and volumes, and a network."""

    def __init__(self, image: Path, folder: Path, net: Path) -> None:
        self.image, self.folder, self.net = image, folder, net

    def container(self, name: str, pod: Pod) -> Container:
        """Starts it."""
        return Container(self.image, pod, self.folder, f"redoubt-{os.getpid()}-{name}")

    def request(self, method: str, url: str, body: str = "") -> str:
        """The body of the answer to a request from the containers' network."""
        command = ["ip", "netns", "exec", self.net.name, sys.executable, "-c", _REQUEST, method, url, body]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
        if done.returncode != 0:
            raise RuntimeError(f"{method} {url}: {done.stderr.splitlines()[-1]}")
        return done.stdout

    def request_until(self, method: str, url: str, body: str, timeout_s: float) -> str:
        """The same, tried until it is answered."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                return self.request(method, url, body)
            except RuntimeError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(1)

    def volume(self, name: str) -> Path:
        """An empty folder that the image's user may write."""
        folder = self.folder / "volumes" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        os.chown(folder, USER_ID, USER_ID)
        return folder


def check(holds: bool, what: object) -> None:
    """Raises AssertionError with what was seen."""
    if not holds:
        raise AssertionError(str(what))


def serve_on_one_core(bench: Bench) -> str:
    """A chat by the `serve` role: one core, no capabilities, read-only root, no call that binds memory."""
    cpu = str(max(os.sched_getaffinity(0)))
    arguments = ["serve", "--config", "ray_configs/local.yaml", "--model", f"/models/{MODEL}"]
    volumes = [Volume(ROOT / "models", "/models")]
    with bench.container("serve", Pod(arguments, volumes=volumes, network=bench.net, cpus=cpu)) as container:
        began_s = time.monotonic()
        container.wait_for_text("http://127.0.0.1:8000", READY_S)
        ready_s = time.monotonic() - began_s
        status = dict(
            line.split(":\t", 1) for line in container.run("cat", "/proc/1/status").splitlines() if ":\t" in line
        )
        check(status["Uid"].split() == [str(USER_ID)] * 4, status["Uid"])
        check({status[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}, status)
        check((status["NoNewPrivs"], status["Seccomp"], status["Cpus_allowed_list"]) == ("1", "2", cpu), status)
        for path in ("/etc", "/opt/redoubt", "/models", "/usr/local/bin"):
            check("Read-only file system" in (said := container.run("touch", f"{path}/x")), said)
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0}
        answer = json.loads(bench.request("POST", "http://127.0.0.1:8000/v1/chat/completions", json.dumps(body)))
        check(answer["usage"]["completion_tokens"] > 0, answer)
        (worker,) = json.loads(bench.request("GET", "http://127.0.0.1:8000/v1/workers"))["data"]
        check((worker["cpus"], worker["memory_bound"]) == ([int(cpu)], False), worker)
        found = container.run("sh", "-c", "cat $(find /tmp -path '*logs*' -type f) | grep -c 'not bound to its NUMA'")
        check(int(found.split()[-1]) > 0, found)
        login = container.run(
            "/bin/bash", "-lc", "--", "redoubt --help >/tmp/h && ray --version && command -v serve python3"
        )
        check("/usr/local/bin/serve" in login and "ray, version" in login, login)
        container.kill(signal.SIGTERM)
        check(container.wait(60) == 0, container.log.read_text())
    text = answer["choices"][0]["message"]["content"]
    return f"ready in {ready_s:.0f} s on core {cpu}, memory_bound false, answered {text!r}"


def verified_chat(bench: Bench) -> str:
    """The `proxy` role verifies `serve` with soft evidence, then answers a chat and shows its own page."""
    environment = {
        "REDOUBT_ALLOW_SOFT_EVIDENCE": "1",
        "REDOUBT_SERVE_CONFIG": (ROOT / "ray_configs/local.yaml").read_text(),
    }
    serve = ["serve", "--config", "env:REDOUBT_SERVE_CONFIG", "--model", f"/models/{MODEL}", "--attest", "soft"]
    volumes = [Volume(ROOT / "models", "/models")]
    with bench.container(
        "attested", Pod(serve, environment=environment, volumes=volumes, network=bench.net)
    ) as service:
        service.wait_for_text("--allow-insecure", READY_S)
        (policy,) = re.findall(r"--policy (\S+)", service.log.read_text())
        folder = bench.volume("policy")
        (folder / "policy.toml").write_text(service.run("cat", policy))
        proxy = ["proxy", "https://127.0.0.1:8443", "--policy", "/policy/policy.toml", "--allow-insecure"]
        with bench.container("proxy", Pod(proxy, volumes=[Volume(folder, "/policy")], network=bench.net)) as container:
            container.wait_for_text("Listening on", 60)
            verdict = container.log.read_text().splitlines()[0]
            page = bench.request("GET", "http://127.0.0.1:8400/")
            body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
            url = "http://127.0.0.1:8400/v1/chat/completions"
            answer = json.loads(bench.request("POST", url, json.dumps(body)))
    check(verdict.startswith("INSECURE"), verdict)
    check("<html" in page, page)
    check(answer["usage"]["completion_tokens"] > 0, answer)
    return f"{verdict} Answered {answer['choices'][0]['message']['content']!r}"


def convert(bench: Bench) -> str:
    """The `convert` role reads one volume and writes another; `serve`'s settings then take the folder."""
    source = bench.volume("source")
    shutil.copy(ROOT / f"models/{MODEL}.gguf", source)
    out = bench.volume("out")
    volumes = [Volume(source, "/source"), Volume(out, "/models", read_only=False)]
    pod = Pod(["convert", f"/source/{MODEL}.gguf", "/models/converted"], volumes=volumes, network=bench.net)
    with bench.container("convert", pod) as container:
        check(container.wait(600) == 0, container.log.read_text())
    names = sorted(path.name for path in (out / "converted").iterdir())
    check("config.json" in names, names)
    same = ROOT / "models" / MODEL
    for name in names:
        if name == "generation_config.json":  # `make model` adds how the model's card would have it sampled
            continue
        check(
            (out / "converted" / name).read_bytes() == (same / name).read_bytes(), f"{name} differs from `make model`'s"
        )
    return f"wrote {', '.join(names)}: the same bytes as `make model`"


def dashboard(bench: Bench) -> str:
    """Ray's dashboard without its page: the REST API takes a Serve configuration, as KubeRay sends it."""
    start = "ray start --head --include-dashboard=true --dashboard-host=127.0.0.1 --num-cpus=2 --block"
    pod = Pod(["-lc", "--", start], entrypoint=["/bin/bash"], network=bench.net)
    url = "http://127.0.0.1:8265/api/serve/applications/"
    config = {"proxy_location": "HeadOnly", "http_options": {"host": "127.0.0.1"}, "applications": []}
    with bench.container("dashboard", pod) as container:
        bench.request_until("GET", url, "", READY_S)
        bench.request("PUT", url, json.dumps(config))
        details: dict[str, Any] = json.loads(bench.request("GET", url))
        check(details["proxy_location"] == "HeadOnly", details)
        container.kill(signal.SIGTERM)
        container.wait(60)
    return f"GET and PUT answered, {len(details['applications'])} applications"


def cluster(bench: Bench) -> str:
    """A head and two workers of one core each, deployed by KubeRay's calls: both compute, and all end in order."""
    made = Network(bench.folder)
    volumes = [Volume(ROOT / "models", "/models")]

    def node(stack: ExitStack, role: str, cpus: str, **environment: str) -> tuple[Container, str]:
        name = f"{role}{cpus}"
        namespace, address = made.plug_in(name)
        variables = {"RAY_AUTH_TOKEN": TOKEN, "POD_IP": address, **environment}
        path = Path("/run/netns") / namespace
        pod = Pod(["node", role], environment=variables, volumes=volumes, network=path, cpus=cpus, hostname=name)
        return stack.enter_context(bench.container(name, pod)), address

    def ready(address: str) -> bool:
        return request(made, address, 8079, "/readyz")[0] == 200

    try:
        with ExitStack() as stack:
            head, head_address = node(stack, "head", "0-1")
            join = {
                "FQ_RAY_IP": head_address,
                "REDOUBT_NODE_MODELS": f"/models/{MODEL}",
                "REDOUBT_DRAIN_TIMEOUT_S": "10",
            }
            workers = [node(stack, "worker", cpus, **join) for cpus in ("0", "1")]
            wait_until(lambda: ready(head_address), READY_S, "the head is ready")
            operator = Operator(made, head_address, TOKEN)
            wait_until(lambda: operator.get()[0] == 200, 60, "the head takes configurations")
            configuration: dict[str, Any] = cluster_configuration(Path("/models") / MODEL)
            configuration["applications"][0]["args"]["worker"]["count"] = 2
            operator.put(configuration)
            took_s = operator.wait_until_running(READY_S)
            wait_until(lambda: all(ready(address) for _, address in workers), 60, "both workers' pods are ready")
            _, front = workers[0]

            def ask(_: int) -> tuple[int, str]:
                return request(made, front, 8000, "/v1/chat/completions", method="POST", body=QUESTION)

            with ThreadPoolExecutor(4) as clients:  # together, so that both workers get some
                answers = list(clients.map(ask, range(8)))
            check({status for status, _ in answers} == {200}, answers)
            rows = json.loads(request(made, front, 8000, "/v1/workers")[1])["data"]
            check(sorted(row["node"] for row in rows if row["generated_tokens"]) == ["worker0", "worker1"], rows)
            check([row["memory_bound"] for row in rows] == [False, False], rows)
            for container in (*(container for container, _ in workers), head):
                container.kill(signal.SIGTERM)
            for container in (*(container for container, _ in workers), head):
                check(container.wait(120) == 0, container.log.read_text())
    finally:
        made.close()
    return f"running {took_s:.0f} s after the PUT, both workers answered"


def refused(arguments: list[str], volume: Callable[[Bench], Path | None], expected: str) -> Callable[[Bench], str]:
    """A mistake of the user's: one line that says it, no traceback, and a status that is not 0."""

    def run(bench: Bench) -> str:
        folder = volume(bench)
        volumes = [Volume(folder, "/models")] if folder else []
        with bench.container("refused", Pod(arguments, volumes=volumes, network=bench.net)) as container:
            status = container.wait(120)
            lines = container.log.read_text().splitlines()
        check(status != 0 and len(lines) == 1 and expected in lines[0], f"status {status}: {lines}")
        return lines[0]

    return run


def without_index(bench: Bench) -> Path:
    """A model as Hugging Face has it, in several files, without the one that lists them."""
    folder = bench.volume("incomplete") / MODEL
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    return folder.parent


SERVE = ["serve", "--model", f"/models/{MODEL}"]
CASES: dict[str, Callable[[Bench], str]] = {
    "missing volume": refused(SERVE, lambda bench: None, f"/models/{MODEL}: there is no such file or folder"),
    "incomplete model": refused(SERVE, without_index, "which no model.safetensors.index.json lists"),
    "no arguments": lambda bench: no_arguments(bench),
    "serve": serve_on_one_core,
    "proxy": verified_chat,
    "convert": convert,
    "dashboard": dashboard,
    "cluster": cluster,
}


def no_arguments(bench: Bench) -> str:
    """The image alone shows its help."""
    with bench.container("help", Pod([], network=bench.net)) as container:
        container.wait(60)
        text = container.log.read_text()
    check("serve" in text and "convert" in text and "Traceback" not in text, text)
    return "prints its help"


def main() -> None:
    """Runs the named cases, or all."""
    parser = argparse.ArgumentParser(description="Run the built image under runc.")
    parser.add_argument("cases", nargs="*", help=f"of: {', '.join(CASES)}")
    parser.add_argument("--image", type=Path, default=ROOT / "build/image/oci", help="an OCI layout")
    arguments = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="redoubt-image-") as folder, network(f"redoubt-{os.getpid()}") as net:
        bench = Bench(unpack(arguments.image, arguments.image.with_name("unpacked")), Path(folder), net)
        for name in arguments.cases or CASES:
            try:
                print(f"passed: {name}: {CASES[name](bench)}", flush=True)
            except (AssertionError, RuntimeError, OSError, subprocess.SubprocessError) as error:
                failed += 1
                print(f"FAILED: {name}: {error}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
