"""langchain's own standard tests of a chat model, through langchain-openai."""

import os

from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

XFAIL: dict[str, str] = {}


class TestRedoubt(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, object]:
        return {
            "model": os.environ["REDOUBT_MODEL"],
            "base_url": f"{os.environ['REDOUBT_URL']}/v1",
            "api_key": "none",
            "temperature": 0,
            "max_tokens": 256,
            "max_retries": 0,
            "stream_usage": True,
        }

    @property
    def supports_json_mode(self) -> bool:
        return True
