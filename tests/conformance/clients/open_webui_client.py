"""Open WebUI: chats, and knowledge whose embeddings and reranking are the service's.

Its environment has none of the packages with which it would run models itself: torch, transformers, speech, pictures.
"""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

TEXTS = {
    "lease.md": "# Lease\n\nThe rent of the house is 1,250 euros a month.\n",
    "pets.md": "# Pets\n\nA cat may live in the house; a dog may not.\n",
    "garden.md": "# Garden\n\nThe hedge is cut in March and in September.\n",
}
START_S = 240


@pytest.fixture(scope="module")
def webui(base_url: str, encoder: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a new Open WebUI, logged in as its first user."""
    folder = tmp_path_factory.mktemp("webui")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "DATA_DIR": str(folder / "data"), "WEBUI_SECRET_KEY": "x", "OFFLINE_MODE": "true", "ENABLE_OLLAMA_API": "false",
        "OPENAI_API_BASE_URL": base_url, "OPENAI_API_KEY": "none",
        "RAG_EMBEDDING_ENGINE": "openai", "RAG_EMBEDDING_MODEL": encoder,
        "RAG_OPENAI_API_BASE_URL": base_url, "RAG_OPENAI_API_KEY": "none",
        "ENABLE_RAG_HYBRID_SEARCH": "true", "RAG_RERANKING_ENGINE": "external", "RAG_RERANKING_MODEL": encoder,
        "RAG_EXTERNAL_RERANKER_URL": f"{base_url}/rerank", "RAG_EXTERNAL_RERANKER_API_KEY": "none",
    }  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    with (folder / "log").open("wb") as log:
        command = ["open-webui", "serve", "--host", "127.0.0.1", "--port", str(port)]
        program = subprocess.Popen(command, env=os.environ | settings, cwd=folder, stdout=log, stderr=log)
    try:
        _wait(url, program, folder / "log")
        with httpx.Client(base_url=url, timeout=120) as client:
            user = {"name": "root", "email": "root@example.org", "password": "a long password 1!"}
            client.headers["Authorization"] = f"Bearer {_json(client.post('/api/v1/auths/signup', json=user))['token']}"
            yield client
    finally:
        program.terminate()
        program.wait(30)


@pytest.fixture(scope="module")
def knowledge(webui: httpx.Client) -> str:
    """The id of a collection with all texts."""
    made = _json(webui.post("/api/v1/knowledge/create", json={"name": "House", "description": "Its rules"}))
    for name, text in TEXTS.items():
        now = {"process": "true", "process_in_background": "false"}
        file = _json(webui.post("/api/v1/files/", params=now, files={"file": (name, text.encode())}))
        _json(webui.post(f"/api/v1/knowledge/{made['id']}/file/add", json={"file_id": file["id"]}))
    return str(made["id"])


def _wait(url: str, program: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while True:
        assert program.poll() is None, log.read_text()[-3000:]
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            assert time.monotonic() < deadline_s, log.read_text()[-3000:]
        time.sleep(0.2)


def _json(answer: httpx.Response) -> dict[str, object]:
    assert answer.status_code == 200, answer.text
    found: dict[str, object] = answer.json()
    return found


def _reranked(url: str) -> float:
    lines = httpx.get(f"{url}/metrics", timeout=30).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if "_requests_total" in line and '"/v1/rerank"' in line)


def test_the_models_are_there(webui: httpx.Client, model: str) -> None:
    assert model in [one["id"] for one in _json(webui.get("/api/models"))["data"]]


def test_a_chat_is_streamed(webui: httpx.Client, model: str) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": "What is a bridge?"}], "stream": True}
    answer = webui.post("/api/chat/completions", json=body)
    assert answer.status_code == 200
    assert answer.text.rstrip().endswith("data: [DONE]")


@pytest.mark.parametrize("hybrid", [False, True])
def test_knowledge_is_found(webui: httpx.Client, knowledge: str, url: str, hybrid: bool) -> None:
    before = _reranked(url)
    for question, name in (("How much is the rent?", "lease.md"), ("May I have a dog?", "pets.md")):
        body = {"collection_names": [knowledge], "query": question, "k": 3, "k_reranker": 3, "hybrid": hybrid}
        found = _json(webui.post("/api/v1/retrieval/query/collection", json=body))
        assert found["metadatas"][0][0]["name"] == name
    if hybrid:
        assert _reranked(url) >= before + 2


def test_a_chat_about_knowledge_has_its_sources(webui: httpx.Client, knowledge: str, model: str) -> None:
    asked = [{"role": "user", "content": "How much is the rent of the house?"}]
    files = [{"type": "collection", "id": knowledge}]
    answer = _json(webui.post("/api/chat/completions", json={"model": model, "messages": asked, "files": files}))
    texts = [text for source in answer["sources"] for text in source["document"]]
    assert any("1,250 euros" in text for text in texts)
