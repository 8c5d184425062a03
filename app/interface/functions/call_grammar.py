"""Builds a grammar for an output that is free text or function calls: a call's mark must be followed by a call.

Before that, and before an answer of a certain form, there may be a thought, which is free text. The grammar is
llguidance's variant of Lark, as text. What it allows as text, `call_parser` reads as text too. A call is followed by
further calls or the end. It knows no request and no model, only which marks are tokens.
"""

import re
from collections.abc import Mapping, Sequence

from app.interface.functions.dialect import CallableFunction, Dialect, Spelling, in_slashes, json_rule, quoted
from app.interface.functions.dialects import BARE, grammar_dialects
from app.interface.thinking.marks import Thought
from app.messages.grammar import HEADER


def call_grammar(
    functions: Sequence[CallableFunction],
    added: Mapping[int, str],
    *,
    parallel: bool,
    answer: str | None = None,
    thought: Thought | None = None,
    dialects: Sequence[Dialect] = grammar_dialects(None),
) -> str:
    """added: the vocabulary's added tokens by id.

    answer: what an output without a call is, as the right side of a rule; None: any text.
    thought: how the output may begin with one; None: it does not.
    dialects: one for each mark that calls may have.
    With such an answer a call needs a mark: without one it could be an answer.
    """
    spelling = Spelling(added, parallel)
    names = [function.name for function in functions]
    without_call = "TEXT | bare" if answer is None else "answer" if thought is None else "SPACE? answer"
    rules = [
        *_beginning(thought, spelling),
        f"output: {without_call} | {' | '.join(dialect.name for dialect in dialects)}",
        'further: SPACE? ((";" | ",") SPACE?)? call',
        r"SPACE: /[ \t\n\r]{1,4}/",
        *BARE.call_rules(names),
        *BARE.rules(spelling, names),
        *(f"arguments_{i}: {json_rule(function.schema)}" for i, function in enumerate(functions)),
    ]
    for dialect in dialects:
        rules += dialect.rules(spelling, functions)
        rules += dialect.mark_rules(spelling, allows_text=answer is None)
    if answer is not None:
        rules.append(f"answer: {answer}")
    elif thought is None or thought.is_open:
        rules.append(BARE.text_rule(names))
    else:  # what begins like a thought is one
        rules.append(rf"{BARE.text_rule(names)} & ~/{_opening(thought)}(.|\n)*/")
    return HEADER + "\n".join(rules) + "\n"


def answer_grammar(answer: str, added: Mapping[int, str], thought: Thought) -> str:
    """Builds a grammar for an output that is this answer after a thought. answer, added: see `call_grammar`."""
    rules = [
        *_beginning(thought, Spelling(added, parallel=False)),
        "output: SPACE? answer",
        r"SPACE: /[ \t\n\r]{1,4}/",
        f"answer: {answer}",
    ]
    return HEADER + "\n".join(rules) + "\n"


def _beginning(thought: Thought | None, spelling: Spelling) -> list[str]:
    """Returns the rule `start`, of a thought and the rule `output`, and its subrules."""
    if thought is None:
        return ["start: output"]
    marks = thought.marks
    ends = " | ".join(["text_of_thought", *(f"THOUGHT {token}" for token in spelling.tokens(marks.closing))])
    rules = [f"thought: {ends}", rf"text_of_thought[lazy]: THOUGHT {quoted(marks.closing)}", r"THOUGHT: /(.|\n)*/"]
    if thought.is_open:  # some models repeat its token
        again = "".join(f" | {token} thought output" for token in spelling.tokens(marks.opening))
        return [f"start: thought output{again}", *rules]
    begins = " | ".join(["OPENING", *(f"SPACE? {token}" for token in spelling.tokens(marks.opening))])
    return [
        "start: output | opening thought output",
        f"opening: {begins}",
        f"OPENING: /{_opening(thought)}/",
        *rules,
    ]


def _opening(thought: Thought) -> str:
    """Returns a pattern for the beginning of a thought as text."""
    return r"[ \t\n\r]{0,4}" + in_slashes(re.escape(thought.marks.opening))
