"""Call loops and other conversations in templates that imitate models' own, compared with transformers.

`make conformance` tests the real templates.
"""

import json

import pytest

from app.interface.text.chat_template import ChatTemplate
from app.interface.wire.chat import Message
from tests.app.interface.text.conversations import CONVERSATIONS, SPECIAL, outcome

pytestmark = pytest.mark.parity

_TOOLS = "{% if tools %}[AVAILABLE]{{ tools | tojson }}{% endif %}"
_LOOP = "{% for m in messages %}"
_END = "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
_SAID = "<|{{ m.role }}|>{{ m.content }}<|end|>"
_CALL = '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
_CALLS = "{% for call in m.tool_calls or [] %}<tool_call>" + _CALL + "</tool_call>{% endfor %}"
_FIRST_SYSTEM = (
    "{% if messages[0].role == 'system' %}<|system|>{{ messages[0].content }}<|end|>"
    "{% set messages = messages[1:] %}{% endif %}"
)
_ALTERNATES = (
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role != 'tool' and m.tool_calls is not defined %}"
    "{% if (m.role == 'user') != (ns.n % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}"
)
_NINE = "{% if call.id | length != 9 %}{{ raise_exception('ids have nine letters') }}{% endif %}"
TEMPLATES = {
    "ChatML, as Qwen": _TOOLS + _LOOP + "<|{{ m.role }}|>{{ m.content }}" + _CALLS + "<|end|>" + _END,
    "no place for calls, as LFM2": "{# <|tool_call_start|> #}" + _FIRST_SYSTEM + _TOOLS + _LOOP + _SAID + _END,
    "no place for calls, as Granite": "{# <|tool_call|> #}" + _FIRST_SYSTEM + _TOOLS + _LOOP + _SAID + _END,
    "neither tools nor calls, as Phi": _LOOP + "{% if m.role in ['system', 'user', 'assistant'] %}" + _SAID
    + "{% endif %}" + _END,
    "one call a message, as Llama 3": _FIRST_SYSTEM + _TOOLS + _LOOP
    + "{% if 'tool_calls' in m %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call only') }}{% endif %}"
    + "<|assistant|>" + _CALLS + "<|end|>{% else %}" + _SAID + "{% endif %}" + _END,
    "the first call alone, as GigaChat": _TOOLS + _LOOP + "<|{{ m.role }}|>{{ m.content }}{% if m.tool_calls %}"
    "{% set call = m.tool_calls[0] %}" + _CALL + "{% endif %}<|end|>" + _END,
    "system first, as Qwen3.5": _TOOLS + _LOOP + "{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('system first') }}{% endif %}<|{{ m.role }}|>{{ m.content }}" + _CALLS + "<|end|>" + _END,
    "later system left out, as SmolLM3": _FIRST_SYSTEM + _TOOLS + _LOOP + "{% if m.role != 'system' %}"
    "<|{{ m.role }}|>{{ m.content }}" + _CALLS + "<|end|>{% endif %}" + _END,
    "last system, as DeepSeek R1": "{% set ns = namespace(s='') %}{% for m in messages %}{% if m.role == 'system' %}"
    "{% set ns.s = m.content %}{% endif %}{% endfor %}{{ ns.s }}" + _LOOP + "{% if m.role != 'system' %}" + _SAID
    + "{% endif %}" + _END,
    "alternating, nine letters, as Mistral": _FIRST_SYSTEM + _ALTERNATES + _TOOLS + _LOOP
    + "{% if m.tool_calls is defined %}{% for call in m.tool_calls %}" + _NINE + _CALL + "{{ call.id }}{% endfor %}"
    "{% elif m.role in ['user', 'tool'] %}[INST]{{ m.content }}[/INST]{% elif m.role == 'assistant' and m.content %}"
    "{{ m.content + eos_token }}{% else %}{{ raise_exception('only some roles') }}{% endif %}" + _END,
    "no system, alternating, as Gemma 2": "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}" + _ALTERNATES + _LOOP + "<start_of_turn>{{ m.role }}\n{{ m.content | trim }}<end_of_turn>" + _END,
    "arguments as text": _TOOLS + _LOOP + "<|{{ m.role }}|>{{ m.content }}{% for call in m.tool_calls or [] %}"
    "{{ call.function.name + '(' + call.function.arguments + ')' }}{% endfor %}<|end|>" + _END,
    "parts": _TOOLS + _LOOP + "<|{{ m.role }}|>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}" + _CALLS + "<|end|>" + _END,
    "tools always": "{{ tools | length }}" + _LOOP + "<|{{ m.role }}|>{{ m.content }}" + _CALLS + "<|end|>"
    + _END + "{{ tools | tojson }}",
}  # fmt: skip


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("template", TEMPLATES)  # the outer one: a template is loaded once
def test_all_is_shown_and_what_transformers_shows_is_the_same(template: str, conversation: str) -> None:
    assert outcome(TEMPLATES[template], conversation) in ("same", "written")


MARKS = ("<|tool_call_start|>", "<|tool_call|>", "</tool_call>", "<|end|>", "<end_of_turn>", "[INST]")


@pytest.mark.parametrize("template", TEMPLATES)
def test_nothing_that_is_handed_back_becomes_a_control_token(template: str) -> None:
    made = ChatTemplate(TEMPLATES[template], SPECIAL, MARKS)

    def marks(text: str, key: str) -> list[int]:
        arguments = json.dumps({key: text, "b": [{key: text}]}) if key else text
        call = {"id": "abcdefgh1", "function": {"name": "look", "arguments": arguments}}
        messages = [
            {"role": "user", "content": text},
            {"role": "assistant", "content": text, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "abcdefgh1", "content": text},
            {"role": "system", "content": text},
        ]
        rendered = made.render([Message.model_validate(one) for one in messages])
        assert text in rendered.replace(made.mark, "")
        return [rendered.count(mark) for mark in MARKS]

    harmless = marks("x", "a")
    for mark in MARKS:
        assert marks(f"x{mark}x", f"a{mark}") == harmless
        assert marks(f"x{mark[:-1]}", f"{mark[1:]}") == harmless
        assert marks(f"x{mark}", "") == marks("x", "")
