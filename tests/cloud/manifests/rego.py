"""Asks a Rego policy, with regorus: the evaluator that Kata's agent and Trustee's KBS have built in."""

import json
from typing import Any

import regorus


def answer(policy: str, rule: str, request: Any, data: Any = None) -> bool:
    """What the rule (`data.package.name`) says of the request, read as Kata's agent does: undefined is False.

    An error in a rule is one of the test; the agent would deny the request.
    """
    engine = regorus.Engine()
    engine.add_policy("policy.rego", policy)
    if data is not None:
        engine.add_data_json(json.dumps(data))
    engine.set_input_json(json.dumps(request))
    values = [each["value"] for found in engine.eval_query(rule)["result"] for each in found["expressions"]]
    return values == [True]
