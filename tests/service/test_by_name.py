"""From a name on a hub to an answer, by one command."""

from pathlib import Path

import openai
import pytest

from tests.hub import TOKEN, running_hub
from tests.service.running import descendants, started_service, write_config

pytestmark = pytest.mark.service


def test_a_name_is_fetched_converted_and_answers(
    embedded_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / embedded_gguf.name.replace(".gguf", "-Q4_1.gguf")).symlink_to(embedded_gguf)
    config = write_config(tmp_path / "serve.yaml", {"engine": {"kv_memory_bytes": 64 << 20}})
    log = tmp_path / "log"
    with running_hub() as hub:
        hub.add("org/smol", files, gated=True)
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("REDOUBT_MODELS", str(tmp_path / "store"))
        with started_service(config, log, "smol-Q4_1", "org/smol") as service:
            with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none") as client:
                messages = [{"role": "user", "content": "What is the capital of France?"}]
                answer = client.chat.completions.create(model=service.model, messages=messages, temperature=0)  # type: ignore[arg-type]
            assert "Paris" in str(answer.choices[0].message.content)
            for process in descendants(service.process.pid):
                given_by_user = process == service.process.pid
                assert given_by_user or TOKEN.encode() not in Path(f"/proc/{process}/environ").read_bytes()
                assert TOKEN.encode() not in Path(f"/proc/{process}/cmdline").read_bytes()
    said = log.read_text()
    assert "Expected here:" in said
    assert TOKEN not in said
