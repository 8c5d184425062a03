"""A rolling change within one Ray Serve, as `serve deploy` makes it on a cluster: the real application, one worker.

Run as a program, in a process of its own, with the folder of a converted model: prints one JSON object, {change:
[{"client": number, "model": asked for, "status": ..., "text": ...}, ...]}: every answer to clients that ask in a loop
during the change. "clean" has the answer of each version of the model, without a change.
"""

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx

from app.launch.ray_environment import ray_environment
from tests.service.running import free_port, wait_until

CLIENTS = 4
PROMPT = [{"role": "user", "content": "Name three colours."}]
SETTLED_S = 4.0
"""How long clients go on after a change."""


def settings(folder: Path, name: str, max_step_tokens: int) -> dict[str, Any]:
    return {
        "model": {"folder": str(folder), "served_name": name},
        "engine": {"kv_memory_bytes": 64 << 20, "max_step_tokens": max_step_tokens, "prompt_chunk_tokens": 64},
        "worker": {
            "count": 1,
            "ray_num_cpus": 0.1,
            "warm_up_prompt_tokens": 16,
            "warm_up_new_tokens": 4,
            "heartbeat_period_s": 0.5,
        },
        "ingress": {"ray_num_cpus": 0.1},
    }


class Cluster:
    """A Ray whose head takes configurations, as KubeRay's operator and `serve deploy` send them."""

    def __init__(self, dashboard: str, token: str, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._applications = f"{dashboard}/api/serve/applications/"
        self._headers = {"x-ray-authorization": f"Bearer {token}"}
        self._http_options = {"host": "127.0.0.1", "port": port}

    def deploy(self, values: dict[str, Any]) -> None:
        """Returns when all of it runs."""
        application = {"name": "redoubt", "route_prefix": "/", "import_path": "app.deploy:build", "args": values}
        configuration = {"http_options": self._http_options, "applications": [application]}
        httpx.put(self._applications, json=configuration, headers=self._headers, timeout=60).raise_for_status()
        wait_until(self._runs, "the application runs", 400)

    def _runs(self) -> bool:
        answer = httpx.get(self._applications, headers=self._headers, timeout=60).raise_for_status()
        (application,) = answer.json()["applications"].values()
        parts = application["deployments"].values()
        assert application["status"] != "DEPLOY_FAILED", application
        return application["status"] == "RUNNING" and all(part["status"] == "HEALTHY" for part in parts)


class Clients:
    """They ask for the models of these names in turns, without a pause, and half of them read streams."""

    def __init__(self, url: str, names: Sequence[str]) -> None:
        self.answers: list[dict[str, Any]] = []
        self._url, self._names = url, names
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def end(self) -> list[dict[str, Any]]:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return self.answers

    def wait_for_a_round(self) -> None:
        """Until each client has an answer to whatever it asks from now on."""
        before = Counter(answer["client"] for answer in self.answers)
        most = 2 * len(self._names)  # one round may have begun

        def have_asked() -> bool:
            now = Counter(answer["client"] for answer in list(self.answers))
            return all(now[client] >= before[client] + most for client in range(CLIENTS))

        wait_until(have_asked, "another round of each client", 240)

    def _ask(self, number: int) -> None:
        streams = number % 2 == 0
        while not self._stop.is_set():
            for name in self._names:
                answer: dict[str, Any] = {"client": number, "model": name}
                with httpx.Client(timeout=60) as client:
                    try:
                        answer |= streamed(client, self._url, name) if streams else whole(client, self._url, name)
                    except httpx.HTTPError as error:
                        answer |= {"status": 0, "text": type(error).__name__}
                self.answers.append(answer)


def body(name: str) -> dict[str, Any]:
    return {"model": name, "messages": PROMPT, "temperature": 0, "max_tokens": 24}


def whole(client: httpx.Client, url: str, name: str) -> dict[str, Any]:
    response = client.post(f"{url}/v1/chat/completions", json=body(name))
    text = response.json()["choices"][0]["message"]["content"] if response.status_code == 200 else response.text
    return {"status": response.status_code, "text": text}


def streamed(client: httpx.Client, url: str, name: str) -> dict[str, Any]:
    text, is_done = "", False
    with client.stream("POST", f"{url}/v1/chat/completions", json=body(name) | {"stream": True}) as response:
        if response.status_code != 200:
            return {"status": response.status_code, "text": response.read().decode()}
        for line in response.iter_lines():
            data = line.removeprefix("data: ")
            is_done = is_done or data == "[DONE]"
            if data.startswith("{"):
                event = json.loads(data)
                text += event["choices"][0]["delta"].get("content") or "" if "choices" in event else data
    return {"status": 200 if is_done else 0, "text": text}


def during(change: Callable[[], None], url: str, names: Sequence[str]) -> list[dict[str, Any]]:
    clients = Clients(url, names)
    time.sleep(1)
    try:
        change()
        time.sleep(SETTLED_S)
        clients.wait_for_a_round()
    finally:
        answers = clients.end()
    return answers


def another_version(model: Path, folder: Path) -> Path:
    """The same weights with a template that makes other prompts."""
    shutil.copytree(model, folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["chat_template"] = (
        "{% for m in messages %}<|im_start|>user\nIn French: {{ m.content }}<|im_end|>\n"
        "<|im_start|>assistant\n{% endfor %}"
    )
    path.write_text(json.dumps(config))
    return folder


def changes(model: Path, folder: Path, cluster: Cluster) -> dict[str, list[dict[str, Any]]]:
    other, url, deploy = another_version(model, folder / "other"), cluster.url, cluster.deploy
    deploy(settings(model, "first", 128))
    wait_until(lambda: httpx.get(f"{url}/health", timeout=60).status_code == 200, "a worker", 240)
    results = {"clean": [whole(httpx.Client(timeout=60), url, "first")]}
    results["settings"] = during(lambda: deploy(settings(model, "first", 256)), url, ["first"])
    results["model"] = during(lambda: deploy(settings(other, "first", 256)), url, ["first"])
    results["clean"].append(whole(httpx.Client(timeout=60), url, "first"))
    results["name"] = during(lambda: deploy(settings(other, "second", 256)), url, ["first", "second"])
    return results


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="redoubt-", dir="/tmp") as folder:
        os.environ.update(ray_environment(Path(folder), os.environ))
        import ray

        started = ray.init(
            address="local",
            namespace="serve",
            include_dashboard=True,
            dashboard_port=free_port(),
            object_store_memory=100 << 20,
            log_to_driver=False,
            _temp_dir=f"{folder}/ray",
        )
        token = Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text()
        cluster = Cluster(f"http://{started.dashboard_url}", token, free_port())
        try:
            json.dump(changes(Path(sys.argv[1]), Path(folder), cluster), sys.stdout)
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main()
