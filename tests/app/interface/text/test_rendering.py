"""A template is a foreign program: what it can do to the process that renders it, and what it can't."""

import logging
from collections.abc import Sequence

import pytest

from app.interface.request.errors import ApiError
from app.interface.text.chat_template import ChatTemplate
from app.interface.text.rendering import Rendering, TemplateBoundsError, TemplateRefusedError
from app.interface.wire.chat import Message

ENDLESS = {
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a loop over a huge text": "{% for c in 'x' * 10**9 %}{% endfor %}",
    "a macro that calls itself twice": "{% macro m(n) %}{{ m(n-1) if n }}{{ m(n-1) if n }}{% endmacro %}{{ m(99) }}",
    "a recursive loop": "{% for x in [9] * 9 recursive %}{{ loop([x - 1] * 9) if x }}{% endfor %}",
    "a repeated text": "{{ 'x' * n }}",
    "a repeated text that the compiler computes": "{{ 'x' * 10**10 }}",
    "a repeated list": "{{ ([1] * n) | length }}",
    "a power": "{{ n ** n }}",
    "a centred text": "{{ 'x'.center(n) }}",
    "the filter of it": "{{ 'x' | center(n) }}",
    "a width": "{{ '%*d' | format(n, 1) }}",
    "an indent": "{{ {1: 2} | tojson(indent=n) }}",
    "a batch": "{{ [1] | batch(n, 0) | list }}",
    "random words": "{{ lipsum(n) }}",
    "a doubling": "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "replacements": "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x | replace('x', 'xx') %}"
    "{% endfor %}",
    "a join": "{% set x = range(99999) | join('x' * 99999) %}",
    "a nested list": "{% set ns = namespace(x=[]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
    "{{ ns.x }}",
    "its comparison": "{% set ns = namespace(x=[], y=[]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
    "a filter that searches": "{{ ('a ' * 9999999) | wordwrap(1) }}",
    "a long text": "{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
}
LOOPING = "{% if 'loop' in messages[0].content %}" + ENDLESS["nested loops"] + "{% endif %}{{ messages[0].content }}"


def said(text: str) -> Sequence[Message]:
    return [Message(role="user", content=text)]


@pytest.mark.parametrize("attack", ENDLESS)
def test_what_does_not_end_is_ended(attack: str) -> None:
    with pytest.raises(TemplateBoundsError, match=r"exceeds 0\.2 s of computation, 1 GiB of memory or 64 MiB of text"):
        Rendering(ENDLESS[attack], cpu_s=0.2).render({"n": 10**10})


def test_deep_recursion_is_an_error_of_the_template() -> None:
    with pytest.raises(TemplateRefusedError, match="RecursionError"):
        Rendering("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}").render({})


def test_only_the_request_that_exceeds_the_bounds_fails(caplog: pytest.LogCaptureFixture) -> None:
    template = ChatTemplate(LOOPING, {}, (), origin="/models/one")
    assert template.render(said("before")) == "before"
    with pytest.raises(ApiError, match="template can't write these messages") as refused:
        template.render(said("loop"))
    assert refused.value.status == 400
    assert template.render(said("after")) == "after"
    ((_, level, line),) = caplog.record_tuples
    assert (level, line.startswith("/models/one: a request's messages: the chat template exceeds")) == (
        logging.ERROR,
        True,
    )
    assert "redoubt serve --chat-template FILE" in line
    assert "before" not in line


def test_a_template_that_never_ends_is_not_loaded() -> None:
    with pytest.raises(TemplateBoundsError):
        ChatTemplate(ENDLESS["nested loops"], {}, ())


def test_a_process_that_was_lost_between_requests_is_replaced() -> None:
    rendering = Rendering("{{ x }}")
    rendering._child.kill()
    rendering._child.wait()
    assert rendering.render({"x": "\ud800ä"}) == "\ud800ä"


def test_the_process_ends_with_its_template() -> None:
    rendering = Rendering("")
    child = rendering._child
    del rendering
    assert child.returncode is not None


def test_a_long_conversation_is_rendered() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}", {}, ())
    messages = [Message(role=("user", "assistant")[i % 2], content="ab c" * 64) for i in range(1000)]
    assert template.render(messages).count("ab c") == 64_000
