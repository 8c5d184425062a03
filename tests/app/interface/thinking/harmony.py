"""The essentials of gpt-oss's template, in a few lines, and its special tokens."""

from typing import Final

NAMES: Final = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>")
TEMPLATE: Final = (
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort | default('medium') }}\n"
    "# Valid channels: analysis, commentary, final.<|end|>"
    "{% set instructions, rest = '', messages %}"
    "{% if messages[0].role in ['developer', 'system'] %}"
    "{% set instructions, rest = messages[0].content, messages[1:] %}{% endif %}"
    "{% if instructions or tools %}<|start|>developer<|message|>{{ instructions }}"
    "{% for tool in tools or [] %}\ntype {{ tool.function.name }} = any;{% endfor %}<|end|>{% endif %}"
    "{% set last = namespace(name=none) %}"
    "{% for message in rest %}{% if message.role == 'assistant' %}{% if 'tool_calls' in message %}"
    "{% set later = namespace(final=false) %}{% for other in rest[loop.index:] %}"
    "{% if other.role == 'assistant' and 'tool_calls' not in other %}{% set later.final = true %}{% endif %}"
    "{% endfor %}"
    "{% if message.content and message.thinking %}{{ raise_exception('content and thinking') }}{% endif %}"
    "{% set thought = message.thinking or message.content %}"
    "{% if thought and not later.final %}"
    "<|start|>assistant<|channel|>analysis<|message|>{{ thought }}<|end|>{% endif %}"
    "{% set call = message.tool_calls[0].function %}{% set last.name = call.name %}"
    "<|start|>assistant to=functions.{{ call.name }}<|channel|>commentary json<|message|>"
    "{{ call.arguments | tojson }}<|call|>"
    "{% else %}<|start|>assistant<|channel|>final<|message|>{{ message.content }}<|end|>{% set last.name = none %}"
    "{% endif %}"
    "{% elif message.role == 'tool' %}{% if last.name is none %}{{ raise_exception('no call') }}{% endif %}"
    "<|start|>functions.{{ last.name }} to=assistant<|channel|>commentary<|message|>"
    "{{ message.content | tojson }}<|end|>"
    "{% elif message.role == 'user' %}<|start|>user<|message|>{{ message.content }}<|end|>{% endif %}{% endfor %}"
    "<|start|>assistant"
)
"""Like gpt-oss's: shows thoughts only before calls without a following answer, one call per message, and only the
first system message."""
