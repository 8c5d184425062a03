import json
from pathlib import Path

import pytest

from bench.conversations.data import Conversation, DataError, Turn, read_conversations

SHAREGPT = [
    {"id": "a", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
    {"id": "b", "conversations": [{"from": "gpt", "value": "Where were we?"}]},
    {
        "id": "c",
        "conversations": [
            {"from": "system", "value": "Be brief."},
            {"from": "human", "value": "1"},
            {"from": "gpt", "value": "2"},
            {"from": "human", "value": "3"},
            {"from": "gpt", "value": "4"},
            {"from": "tool", "value": "5"},
        ],
    },
]


def written(folder: Path, text: str) -> Path:
    path = folder / "data"
    path.write_text(text)
    return path


def test_sharegpt(tmp_path: Path) -> None:
    found = read_conversations(written(tmp_path, json.dumps(SHAREGPT)))
    assert found.usable == (
        Conversation("a", "", (Turn("Hi", "Hello"),)),
        Conversation("c", "Be brief.", (Turn("1", "2"), Turn("3", "4"))),
    )
    assert found.unanswered == 1


def test_openai_messages_a_line(tmp_path: Path) -> None:
    lines = [
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]},
        {"id": 7, "messages": [{"role": "user", "content": "Ho"}, {"role": "assistant", "content": "Ha"}]},
    ]
    found = read_conversations(written(tmp_path, "\n\n".join(json.dumps(line) for line in lines)))
    assert [(one.id, one.turns[0].answer) for one in found.usable] == [("0", "Hello"), ("7", "Ha")]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a,b\n1,2", "line 1 is no JSON"),
        ("[1, 2", "is none"),
        ('[{"text": "a"}]', r'entry 0: an object with "conversations"'),
        ('{"messages": "a"}', "line 1: its messages are no list"),
        ('{"messages": [{"role": "user", "content": [{"type": "text"}]}]}', 'message 0: needs "from" and "value"'),
        ("[" * 100_000, "is none"),
        ("[]", "has no conversation"),
        ("", "has no conversation"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(DataError, match=named):
        read_conversations(written(tmp_path, text))


def test_a_conversation_ends_before_a_message_without_a_text(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    odd: list[object] = [
        {"role": "user", "content": None},
        {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
        {"role": "narrator", "content": "Later"},
        {"role": "user"},
        "Hi",
        None,
    ]
    parts = [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief"}]
    records: list[dict[str, object]] = [{"messages": [*asked, one, *asked]} for one in odd]
    records += [{"messages": [{"role": "developer", "content": parts}, *asked]}, {"messages": None}, {"messages": []}]
    found = read_conversations(written(tmp_path, json.dumps([None, *records])))
    assert [(one.system, one.turns) for one in found.usable] == [
        *[("", (Turn("Hi", "Ho"),))] * len(odd),
        ("Be\nbrief", (Turn("Hi", "Ho"),)),
    ]
    assert found.unanswered == 3


def test_odd_characters(tmp_path: Path) -> None:
    said = "a\u2028b\u0085c\x0cd"
    path = tmp_path / "data"
    lines = [f'{{"id": "\\udc00", "messages": [{{"role": "user", "content": "{said}"}}, %s]}}'.replace("\x0c", "\\f")]
    lines[0] %= '{"role": "assistant", "content": "\\ud83d \\ud83d\\ude00"}'
    path.write_text("\ufeff" + "\r\n".join(lines * 2), encoding="utf-8")
    one, _ = read_conversations(path).usable
    assert one == Conversation("\ufffd", "", (Turn(said, "\ufffd \U0001f600"),))


def test_bytes_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="UTF-8"):
        read_conversations(path)
