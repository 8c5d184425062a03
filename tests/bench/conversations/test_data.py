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
        ('{"messages": [{"role": "user", "content": [{"type": "text"}]}]}', 'message 0: needs "role" and "content"'),
        ("[]", "has no conversation"),
        ("", "has no conversation"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(DataError, match=named):
        read_conversations(written(tmp_path, text))


def test_bytes_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="UTF-8"):
        read_conversations(path)
