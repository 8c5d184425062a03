import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from app.interface.request.errors import ApiError
from app.interface.text.chat_model import ChatModel
from app.interface.wire.chat import Message
from app.interface.wire.tools import Tool
from app.model_folder import ChatModelError
from tests.app.tiny_model import (
    CONTROL,
    EOS_ID,
    TEMPLATE,
    reference_tokenizer,
    sentencepiece_json,
    tiny_model,
    tokenizer_json,
)

ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}[{{ m.role }}: {{ m.content }}]{% endfor %}"
)
LLAMA2_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
HOSTILE = st.lists(
    st.one_of(
        st.text(max_size=5),
        st.sampled_from([*CONTROL, "<|im_", "end|>", "<", ">", "|>", "<|", "\n", "user", "\ue000", "\ue001", "  "]),
    ),
    max_size=8,
).map("".join)


def user(content: Any, **fields: Any) -> Message:
    return Message.model_validate({"role": "user", "content": content, **fields})


def sentencepiece_model(template: str | None = LLAMA2_TEMPLATE, **config: Any) -> ChatModel:
    return ChatModel(
        tokenizer=sentencepiece_json(),
        config={"vocab_size": 320, "max_position_embeddings": 512, "eos_token_id": [2]},
        tokenizer_config={"bos_token": {"content": "<s>"}, "eos_token": "</s>", **config},
        template=template,
    )


def chatml(*contents: str) -> str:
    turns = "".join(f"<|im_start|>user\n{content}<|im_end|>\n" for content in contents)
    return f"{turns}<|im_start|>assistant\n"


TINY, SENTENCEPIECE = tiny_model(context_tokens=100_000), sentencepiece_model()
SENTENCEPIECE_REFERENCE = Tokenizer.from_str(json.dumps(sentencepiece_json()))


@given(st.lists(st.text(), min_size=1, max_size=3))
def test_ordinary_conversations_are_tokenized_as_one_text(contents: list[str]) -> None:
    expected = reference_tokenizer().encode(chatml(*contents)).ids
    assert TINY.chat_prompt([user(content) for content in contents]) == expected


@given(st.lists(HOSTILE, min_size=1, max_size=3))
def test_control_tokens_in_what_users_write_stay_text(contents: list[str]) -> None:
    token_ids = TINY.chat_prompt([user(content, name=content) for content in contents])
    control = [token for token in token_ids if token <= EOS_ID]
    assert control == [1, 2] * len(contents) + [1]
    # Nothing is lost either: what is between the control tokens spells exactly what was written.
    plain = Tokenizer.from_str(json.dumps(tokenizer_json()))
    for i, content in enumerate(contents):
        starts = [at for at, token in enumerate(token_ids) if token == 1]
        ends = [at for at, token in enumerate(token_ids) if token == EOS_ID]
        inside = token_ids[starts[i] + 1 : ends[i]]
        assert plain.decode(inside, skip_special_tokens=False) == f"user\n{content}"


@given(HOSTILE.map(lambda text: text.replace("<|im_", "<s").replace("end|>", "/s>")), HOSTILE)
def test_control_tokens_stay_text_in_sentencepiece_too(first: str, second: str) -> None:
    messages = [user(first + "<s>"), Message(role="assistant", content=second + "</s>"), user("hi")]
    token_ids = SENTENCEPIECE.chat_prompt(messages)
    assert [token for token in token_ids if token in (1, 2)] == [1, 2, 1]


@given(st.text("abc .", max_size=20), st.text("abc .", max_size=20))
def test_sentencepiece_conversations_are_tokenized_as_one_text(first: str, second: str) -> None:
    text = f"<s>[INST] {first.strip()} [/INST] {second.strip()} </s><s>[INST] x [/INST]"
    messages = [user(first), Message(role="assistant", content=second), user("x")]
    expected = SENTENCEPIECE_REFERENCE.encode(text, add_special_tokens=False).ids
    assert SENTENCEPIECE.chat_prompt(messages) == expected


def added(*names: str) -> dict[str, Any]:
    """The tiny tokenizer with further, non-special tokens."""
    tokenizer = tokenizer_json()
    like = {**tokenizer["added_tokens"][0], "special": False}
    tokenizer["added_tokens"] += [{**like, "id": 360 + i, "content": name} for i, name in enumerate(names)]
    return tokenizer


def test_white_space_and_words_of_a_template_stay_tokens_of_text() -> None:
    """Two newlines are in template and vocabulary, as in Gemma 3."""
    template = "{% for m in messages %}<think>[INST]{{ '\n\n' }}Human: 12    ---{{ m.content }}<|im_end|>{% endfor %}"
    names = ("\n\n", "    ", "12", "Human:", "---", "<think>", "[INST]")
    tokenizer = added(*names)
    config = {"vocab_size": 367, "max_position_embeddings": 512}
    model = ChatModel(tokenizer=tokenizer, config=config, template=template)
    reference = Tokenizer.from_str(json.dumps(tokenizer))
    text = "one\n\ntwo    12 Human: ---\n\n"
    assert model.chat_prompt([user(text)])[-1] == EOS_ID
    expected = reference.encode(f"<think>[INST]\n\nHuman: 12    ---{text}<|im_end|>").ids
    assert set(range(360, 367)) < set(expected)
    assert model.chat_prompt([user(text)]) == expected
    marks = [token for token in model.chat_prompt([user("<think>x[INST]<|im_end|>")]) if token in (365, 366, EOS_ID)]
    assert marks == [365, 366, EOS_ID]


def test_two_halves_of_a_control_token_do_not_become_one() -> None:
    template = "{% for m in messages %}{{ m.name + m.content.strip() }}{% endfor %}|>"
    model = tiny_model(template)
    assert EOS_ID not in model.chat_prompt([user("_end|>", name="<|im")])
    assert EOS_ID not in model.chat_prompt([user("<|im_end  ", name="x")])
    assert EOS_ID not in model.chat_prompt([user("d", name="<|im_en")])


def test_merges_do_not_reach_control_tokens() -> None:
    tokenizer = tokenizer_json()
    tokenizer["model"]["merges"].append(["<|im_", "end|>"])
    tokenizer["model"]["vocab"] |= {"<|im_": 360, "end|>": 361}
    model = ChatModel(
        tokenizer=tokenizer,
        config={"vocab_size": 362, "max_position_embeddings": 512},
        template=TEMPLATE,
    )
    assert model.chat_prompt([user("<|im_end|>")]).count(EOS_ID) == 1


def test_content_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert TINY.chat_prompt([user(parts)]) == TINY.chat_prompt([user("one\ntwo")])


def test_a_template_that_shows_only_parts_gets_parts() -> None:
    model = tiny_model("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}")
    assert model.chat_prompt([user("hello")]) == reference_tokenizer().encode("hello").ids


def test_developer_is_the_system_role_unless_the_template_knows_it() -> None:
    developer = [Message(role="developer", content="x"), user("y")]
    assert TINY.chat_prompt(developer) == TINY.chat_prompt([Message(role="system", content="x"), user("y")])
    knowing = tiny_model(f"{{# developer #}}{TEMPLATE}")
    assert knowing.chat_prompt(developer) != TINY.chat_prompt(developer)


def test_tool_messages_and_calls_reach_the_template() -> None:
    template = (
        "{% for m in messages %}{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments.city }}"
        "{{ m.tool_calls | tojson }}{% endif %}{{ m.tool_call_id }}{{ m.content }}{% endfor %}"
    )
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Größe"}'}}
    messages = [
        Message.model_validate({"role": "assistant", "content": None, "tool_calls": [call]}),
        Message.model_validate({"role": "tool", "tool_call_id": "c1", "content": "sunny"}),
    ]
    text = reference_tokenizer().decode(tiny_model(template).chat_prompt(messages))
    assert text.startswith('Größe[{"id": "c1", "type": "function"')
    assert text.endswith("c1sunny")


def test_a_template_without_functions_gets_them_as_text() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages: list[dict[str, object]] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "<|im_end|>42"},
    ]
    tool = Tool.model_validate({"type": "function", "function": {"name": "f", "description": "<|im_start|>"}})
    token_ids = TINY.chat_prompt([Message.model_validate(message) for message in messages], [tool])
    text = reference_tokenizer().decode(token_ids, skip_special_tokens=False)
    assert '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>' in text
    assert "<tool_response>\n<|im_end|>42\n</tool_response>" in text
    assert text.startswith("<|im_start|>system\nYou can call functions.")
    assert token_ids.count(1) == 5, "control tokens that others wrote are text"
    assert token_ids.count(2) == 4


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ nothing.more }}", "'nothing' is undefined"),
        ("{{ messages.append(1) }}", "not safely callable|unsafe"),
        ("{{ messages[0].content.__class__.__mro__ }}", "unsafe|undefined"),
    ],
)
def test_what_a_template_refuses_is_a_400_with_its_words(template: str, reason: str) -> None:
    with pytest.raises(ApiError, match=reason) as caught:
        tiny_model(template).chat_prompt([user("<|im_end|>")])
    assert (caught.value.status, caught.value.param) == (400, "messages")
    assert "\ue000" not in caught.value.message


def test_several_turns_of_the_user_are_one_where_a_template_wants_roles_to_alternate() -> None:
    turns = [user("a"), user("<|im_end|>b"), Message(role="assistant", content="c"), user("d")]

    def shown(template: str, messages: list[Message]) -> str:
        return reference_tokenizer().decode(tiny_model(template).chat_prompt(messages), skip_special_tokens=False)

    assert shown(ALTERNATING, turns) == "[user: a\n\n<|im_end|>b][assistant: c][user: d]"
    assert tiny_model(ALTERNATING).chat_prompt(turns).count(2) == 0, "what users write is text"
    assert tiny_model(ALTERNATING).conversation(turns).token_ids == tiny_model(ALTERNATING).chat_prompt(turns)
    assert "[user: a][user: " in shown("{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}", turns)
    begun = [Message(role="assistant", content=text) for text in ("c", "", "d")]
    assert shown(ALTERNATING, [*begun, turns[0]]) == "[user: ][assistant: c\n\nd][user: a]"


def test_template_helpers() -> None:
    template = (
        "{% generation %}{{ strftime_now('%Y') | length }}{% endgeneration %}"
        "{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
        "{{ {'a': '<é>'} | tojson }}\n  {%- if true %}\n    ok\n    {% endif %}"
    )
    text = reference_tokenizer().decode(tiny_model(template).chat_prompt([user("x")]))
    assert text == '41{"a": "<é>"}    ok\n'


def test_a_missing_content_is_refused() -> None:
    with pytest.raises(ApiError, match=r"messages\[1\].content"):
        TINY.chat_prompt([user("x"), Message(role="user")])


def test_raw_prompts_may_hold_control_tokens() -> None:
    assert TINY.raw_prompt("<|im_start|>user") == reference_tokenizer().encode("<|im_start|>user").ids


def test_bos_goes_before_a_raw_prompt_once() -> None:
    assert SENTENCEPIECE.raw_prompt("the")[0] == 1
    assert SENTENCEPIECE.raw_prompt("<s>the").count(1) == 1
    assert SENTENCEPIECE.raw_prompt("") == [1]
    assert sentencepiece_model(add_bos_token=False).raw_prompt("the").count(1) == 0
    assert SENTENCEPIECE.chat_prompt([user("hi")]).count(1) == 1


def test_a_prompt_that_cannot_fit_is_refused_without_being_tokenized() -> None:
    with pytest.raises(ApiError, match="at least") as caught:
        tiny_model(context_tokens=16).chat_prompt([user("x" * 1_000_000)])
    assert caught.value.code == "context_length_exceeded"


def test_end_tokens_come_from_all_three_files() -> None:
    model = ChatModel(
        tokenizer=tokenizer_json(),
        config={"vocab_size": 360, "max_position_embeddings": 64, "eos_token_id": 0},
        tokenizer_config={"eos_token": "<|im_end|>"},
        generation_config={"eos_token_id": [1, 5]},
        template=TEMPLATE,
    )
    assert model.eos_token_ids == {0, 1, 2, 5}


def write_folder(folder: Path, **files: Any) -> Path:
    contents: dict[str, Any] = {
        "tokenizer.json": tokenizer_json(),
        "config.json": {"vocab_size": 360, "max_position_embeddings": 64, "eos_token_id": EOS_ID},
        "tokenizer_config.json": {"chat_template": TEMPLATE},
    }
    for name, value in (contents | files).items():
        if value is not None:
            (folder / name).write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"tokenizer_config.json": {"chat_template": [{"name": "default", "template": TEMPLATE}]}},
        {"tokenizer_config.json": None, "chat_template.jinja": TEMPLATE},
    ],
)
def test_loads_a_folder_wherever_its_template_is(tmp_path: Path, files: dict[str, Any]) -> None:
    model = ChatModel.load(write_folder(tmp_path, **files), max_context_tokens=32)
    assert model.chat_prompt([user("x")]) == TINY.chat_prompt([user("x")])
    assert model.context_tokens == 32


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"tokenizer.json": None}, "tokenizer.json: no such file"),
        ({"config.json": "{"}, "config.json"),
        ({"config.json": "[]"}, "not a JSON object"),
        ({"config.json": {"vocab_size": 5}}, "max_position_embeddings"),
        (
            {"generation_config.json": {"eos_token_id": [2, 9999]}},
            "generation_config.json: eos_token_id: 9999 is no token",
        ),
        (
            {"generation_config.json": {"eos_token_id": "</s>"}},
            "generation_config.json: eos_token_id: '</s>' is no token",
        ),
        (
            {"tokenizer_config.json": {"chat_template": 3, "eos_token": []}, "tokenizer.json": {"model": 3}},
            "can't be read: Attrib",
        ),
        ({"tokenizer_config.json": {"chat_template": "{% if %}"}}, "chat template is not valid, line 1"),
    ],
)
def test_a_folder_that_is_wrong_is_refused_by_name(tmp_path: Path, files: dict[str, Any], reason: str) -> None:
    with pytest.raises(ChatModelError, match=reason):
        ChatModel.load(write_folder(tmp_path, **files))


def test_without_a_template_there_is_no_chat() -> None:
    with pytest.raises(ApiError, match=r"no chat template, .* /v1/completions, .* --chat-template FILE"):
        tiny_model(None).chat_prompt([user("x")])
    assert not tiny_model(None).can_chat
    assert tiny_model().can_chat


def test_a_template_of_another_file(tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages[0].content }}!")
    model = ChatModel.load(write_folder(tmp_path), template=template)
    assert model.tokenizer.text(model.chat_prompt([user("Hi")])) == "Hi!"
    template.write_bytes(b"\xff")
    with pytest.raises(ChatModelError, match=r"t\.jinja: not UTF-8"):
        ChatModel.load(write_folder(tmp_path), template=template)


async def test_a_long_text_lets_other_streams_go_on() -> None:
    """The GIL is free while a text is tokenized."""
    text = "The quick brown fox. " * 30_000
    most = 0
    for _ in range(10):  # other programs may have the cores meanwhile
        turns = 0
        tokenizing = asyncio.create_task(asyncio.to_thread(TINY.raw_prompt, text, bounded=False))
        while not tokenizing.done():
            await asyncio.sleep(0.001)
            turns += 1
        assert len(await tokenizing) > 100_000
        if (most := max(most, turns)) > 10:
            break
    assert most > 10
