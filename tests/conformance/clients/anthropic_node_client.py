"""Anthropic's package for TypeScript: a stream with a thought and a call, its result, and a refusal."""

import json
import sys
from pathlib import Path
from typing import Any

from agents import Desk, call

PROGRAM = """
const Anthropic = require("@anthropic-ai/sdk");
const client = new Anthropic({ apiKey: "none", maxRetries: 0 });  // the address is in ANTHROPIC_BASE_URL

async function main() {
  const tools = [{ name: "get_weather", input_schema: { type: "object", properties: { city: { type: "string" } } } }];
  const asked = { model: "tiny", max_tokens: 2048, tools, thinking: { type: "enabled", budget_tokens: 1024 } };
  const messages = [{ role: "user", content: "What is the weather in Rome?" }];
  const seen = { thinking: "", text: "", json: "" };
  const stream = client.messages.stream({ ...asked, messages });
  stream.on("thinking", (piece) => { seen.thinking += piece; });
  stream.on("inputJson", (piece) => { seen.json += piece; });
  const first = await stream.finalMessage();
  const used = first.content.find((block) => block.type === "tool_use");
  messages.push({ role: "assistant", content: first.content });
  messages.push({ role: "user", content: [{ type: "tool_result", tool_use_id: used.id, content: "sunny" }] });
  const second = await client.messages.create({ ...asked, messages });
  const length = await client.messages.countTokens({ model: "tiny", messages, tools });
  const models = [];
  for await (const model of client.models.list()) models.push(model.id);
  const refused = await client.messages.create({ ...asked, model: "claude-opus", messages }).catch((error) => error);
  const error = { name: refused.constructor.name, status: refused.status, id: refused.requestID };
  console.log(JSON.stringify({ seen, first, second, length, models, error }));
}
main();
"""


def test_an_agents_turn(desk: Desk) -> None:
    weather = f"<think>\nI look.\n</think>\n\n{call('get_weather', city='Rome')}"
    desk.script([("sunny", "It is sunny."), ("Rome", weather)])
    packages = Path(sys.prefix) / "node" / "node_modules"
    printed = desk.run(["node", "--eval", PROGRAM], ANTHROPIC_BASE_URL=desk.url, NODE_PATH=str(packages))
    told: dict[str, Any] = json.loads(printed)
    assert told["seen"]["thinking"] == "I look."
    assert json.loads(told["seen"]["json"]) == {"city": "Rome"}
    assert [block["type"] for block in told["first"]["content"]] == ["thinking", "tool_use"]
    assert (told["first"]["stop_reason"], told["second"]["stop_reason"]) == ("tool_use", "end_turn")
    assert told["second"]["content"][0]["text"] == "It is sunny."
    assert told["length"]["input_tokens"] > 0
    assert told["models"] == ["tiny"]
    assert (told["error"]["name"], told["error"]["status"]) == ("NotFoundError", 404)
    assert told["error"]["id"]
