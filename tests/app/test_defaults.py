"""Defaults that several layers share have one value."""

import inspect
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from app.engine.engine import Engine
from app.messages.defaults import PROMPT_CHUNK_TOKENS
from app.settings.worker import EngineSettings


def test_the_settings_and_the_engine_agree_on_the_prompt_chunk() -> None:
    assert EngineSettings().prompt_chunk_tokens == PROMPT_CHUNK_TOKENS
    assert inspect.signature(Engine).parameters["prompt_chunk_tokens"].default == PROMPT_CHUNK_TOKENS


@pytest.mark.parametrize("name", ["local.yaml", "cluster.yaml"])
def test_the_example_configurations_agree_too(name: str) -> None:
    path = Path(__file__).parents[2] / "ray_configs" / name
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    for application in config["applications"]:
        engine = application["args"].get("engine", {})
        assert engine.get("prompt_chunk_tokens", PROMPT_CHUNK_TOKENS) == PROMPT_CHUNK_TOKENS
