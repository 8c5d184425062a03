"""Parts of an output that come twice or early make the output once and in order."""

from random import Random

import pytest

from app.messages.bundle import Assembler, Part
from app.messages.outputs import TokenDelta


def assembled(parts: list[Part]) -> tuple[list[int], list[str]]:
    """Tokens and finish reasons."""
    assembler = Assembler()
    tokens: list[int] = []
    reasons: list[str] = []
    for part in parts:
        assembler.put(part)
        while (delta := assembler.take()) is not None:
            tokens += delta.token_ids
            if delta.finish_reason is not None:
                reasons.append(delta.finish_reason)
    return tokens, reasons


@pytest.mark.parametrize("seed", range(50))
def test_the_output_is_complete_whichever_parts_come_twice_or_early(seed: int) -> None:
    random = Random(seed)
    output = list(range(100, 100 + random.randrange(1, 30)))
    begins = sorted({0, *random.choices(range(len(output)), k=random.randrange(6))})
    parts = [
        Part("a", begin, TokenDelta(tuple(output[begin:end]), "stop" if end == len(output) else None))
        for begin, end in zip(begins, [*begins[1:], len(output)], strict=True)
    ]
    for _ in range(random.randrange(6)):
        begin = random.randrange(len(output))
        parts.append(Part("a", begin, TokenDelta(tuple(output[begin : begin + random.randrange(1, 9)]))))
    last = parts.pop(len(begins) - 1)  # a stream's own parts come in order, and this one is its last
    random.shuffle(parts)
    assert assembled([*parts, last]) == (output, ["stop"])


def test_an_end_without_tokens_is_reported_once() -> None:
    parts = [Part("a", 0, TokenDelta((1,))), Part("a", 1, TokenDelta((2,))), Part("a", 0, TokenDelta((1, 2), "stop"))]
    assert assembled(parts) == ([1, 2], ["stop"])


def test_cached_tokens_come_with_the_first_delta() -> None:
    assembler = Assembler()
    assembler.put(Part("a", 0, TokenDelta((1,), None, 16)))
    assert assembler.take() == TokenDelta((1,), None, 16)
