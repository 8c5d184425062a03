"""schemathesis: whatever the OpenAPI page allows, and what it forbids, the service answers as the page says.

Never a 500, no status and no content type that the page does not name, and answers of the shape that it gives.
"""

import os
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

URL = os.environ["REDOUBT_URL"]
MODEL = os.environ["REDOUBT_MODEL"]
EXAMPLES = int(os.environ.get("REDOUBT_EXAMPLES", "60"))
ANSWER_S = 60
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

schema = schemathesis.openapi.from_url(f"{URL}/openapi.json")


def within_reason(body: Any) -> Any:
    """The same with the model that is served, or everything ends as a 404; and not for minutes."""
    if not isinstance(body, dict):
        return body
    body = {**body, "model": MODEL} if "model" in body else body
    if isinstance(body.get("max_tokens"), int) and not isinstance(body["max_tokens"], bool):
        body["max_tokens"] = min(body["max_tokens"], 8)  # the Messages API needs one
    limits = [name for name in ("max_tokens", "max_completion_tokens", "max_output_tokens") if name in body]
    if not limits and ({"messages", "prompt"} & body.keys()):
        body["max_tokens"] = 8
    return body


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_operation(case: Any) -> None:
    case.body = within_reason(case.body)
    try:
        response = case.call(timeout=ANSWER_S)
    except requests.Timeout:
        return  # an output without end is a valid wish
    case.validate_response(response, checks=CHECKS)


def test_it_is_still_up() -> None:
    assert requests.get(f"{URL}/health", timeout=ANSWER_S).status_code == 200
    options = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    answer = requests.post(f"{URL}/v1/completions", json=options, timeout=ANSWER_S)
    assert "Paris" in answer.json()["choices"][0]["text"]
