"""The bench of conversations on a service that runs: every request is answered as long as was ordered."""

import json
from pathlib import Path

import pytest

from bench.conversations.command import main
from tests.service.running import RunningService


def test_conversations_in_two_turns(
    service: RunningService, service_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def message(role: str, content: str) -> dict[str, str]:
        return {"role": role, "content": content}

    asked = [
        [
            message("user", f"Tell me about the number {number}."),
            message("assistant", "It is a number like others, and there is little to say about it."),
            message("user", "Then tell me about the next one."),
            message("assistant", "It is one more."),
        ]
        for number in range(10)
    ]
    data, out = tmp_path / "data.jsonl", tmp_path / "out.json"
    data.write_text("\n".join(json.dumps({"messages": messages}) for messages in asked))
    options = ["--url", service.url, str(service_model), "--data", str(data), "--turns", "2", "--out", str(out)]
    assert main([*options, "--at-once", "2", "--conversations", "3", "--rounds", "2"]) == 0
    printed, result = capsys.readouterr().out, json.loads(out.read_text())
    rounds = result["rounds"]["service"]
    assert [(one["requests"], one["completed"], one["errors"]) for one in rounds] == [(6, 6, {})] * 2
    assert all(one["prompt_tokens"] > 0 for one in rounds)
    assert result["medians"]["service"]["requests_per_s"] > 0
    assert result["all_rounds"]["service"]["first_token_p50_s"] > 0
    assert not {"commit", "threads"} & set(result)
    assert "| service |" in printed
