"""One choice of an answer: turns its tokens into thought, text, calls and log probabilities.

The thought is split off first: stop strings and calls count only outside of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.interface.functions.call_parser import CallParser, ForcedCall, ToolCallDelta
from app.interface.generate.answers.logprobs import CompletionLogprobs, chat_entries
from app.interface.generate.planning.job import Job
from app.interface.text.chat_model import ChatModel
from app.interface.text.detokenizer import StopStrings
from app.interface.thinking.channels import ChannelSplitter
from app.interface.thinking.splitter import ThoughtSplitter, splitter_of
from app.interface.wire.generation import FinishReason, ReasoningCut
from app.messages.outputs import PromptProgress, TokenDelta, TokenScores
from app.messages.thoughts import ThoughtBudget, ThoughtWatch


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What a choice has gained since its last delta; the last delta has a finish reason."""

    index: int
    text: str
    tokens: int
    finish_reason: FinishReason | None
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache; only one delta of a choice has them."""
    logprobs: Mapping[str, list[Any]] | None = None
    """OpenAI's lists for these tokens."""
    logprob: float = 0.0
    """The sum of the tokens' log probabilities."""
    calls: tuple[ToolCallDelta, ...] = ()
    progress: PromptProgress | None = None
    """Progress of the prompt, from before the rest of the delta."""
    thought: str = ""
    """The thought; it precedes the text and the calls of this delta."""
    thought_tokens: int = 0
    """How many of `tokens` belong to the thought and its marks."""
    cut: ReasoningCut | None = None
    """What ended the thought, if it was not the model; after `thought` and before the text."""
    stop: str | None = None
    """The stop string that ended the choice."""
    token_ids: tuple[int, ...] = ()
    """Its tokens, if the request wants to know them."""


class Choice:
    """Turns one choice's tokens into deltas."""

    def __init__(self, index: int, job: Job, model: ChatModel) -> None:
        self._index = index
        self._text = _ChoiceText(model, job, job.request_of(index).thought)
        self._in_channels = job.thought is not None and job.thought.in_channels
        self._scored = _Scores(model, job, index)
        self._calls = _call_parser(job)
        self._content_scores = None if self._calls is None or job.scores is None else _ContentScores()
        self._echo = job.echoes[index // job.choices] if job.echoes else job.begun
        self._undecided_scores: list[dict[str, Any]] = []
        self._shows_tokens = job.shows_tokens
        self._ends_early = False  # a stop string or the end of the only call has ended it, not the engine

    def feed(self, delta: TokenDelta) -> list[ChoiceDelta]:
        """Returns what these tokens add to the choice, in order. Nothing may follow a finish reason.

        Usually one delta; more if the model thinks again after it has begun to answer, or says more after a call.
        """
        has_scored_parts = self._text.may_think and delta.scores is not None
        needs_singles = self._in_channels or self._calls is not None or has_scored_parts
        if not needs_singles or len(delta.token_ids) < 2:
            return [self._feed(delta)]
        # One token at a time, to know which tokens' scores belong to a call or to a thought, and what came first.
        joined: list[ChoiceDelta] = []
        for one in _singles(delta):
            add_delta(joined, self._feed(one))
            if joined[-1].finish_reason is not None:
                break
        return joined

    def used(self, delta: TokenDelta, new: list[ChoiceDelta]) -> TokenDelta:
        """Returns what the choice has used of the delta that `feed` has turned into `new`.

        Tokens behind the choice's end are cut off, and with them what the engine says of its own end.
        """
        if not self._ends_early:
            return delta
        tokens = sum(one.tokens for one in new)
        return delta._replace(token_ids=delta.token_ids[:tokens], finish_reason=None, scores=None)

    def _feed(self, delta: TokenDelta) -> ChoiceDelta:
        piece = self._text.feed(delta)
        new_text, tokens = piece.text, piece.tokens
        scores = self._without_thought(self._scored.lists(delta, tokens), piece)
        whole_text = new_text
        finish_reason: FinishReason | None = delta.finish_reason
        if piece.stop is not None:
            finish_reason, self._ends_early = "stop", True
        found: list[ToolCallDelta] = []
        if self._calls is not None:
            new_text, found = self._calls.feed(new_text)
            if self._calls.ended:
                finish_reason, self._ends_early = "tool_calls", True
            if finish_reason is not None:
                rest, more = self._calls.finish()
                new_text, found = new_text + rest, found + more
                finish_reason = "tool_calls" if self._calls.calls and finish_reason == "stop" else finish_reason
            if self._content_scores is not None:
                entries = scores["content"] if scores is not None else []
                entries = self._content_scores.feed(entries, whole_text, new_text, self._calls.held_characters)
                if finish_reason is not None and not self._calls.calls:
                    entries += self._content_scores.rest()
                scores = {"content": entries} if scores is not None or entries else None
        echo, self._echo = self._echo, ""
        return ChoiceDelta(
            self._index,
            echo + new_text,
            tokens,
            finish_reason,
            delta.cached_tokens,
            scores,
            0.0 if delta.scores is None else float(delta.scores.logprobs[:tokens].sum()),
            tuple(found),
            thought=piece.thought,
            thought_tokens=piece.thought_tokens,
            cut=piece.cut,
            stop=piece.stop,
            token_ids=delta.token_ids[:tokens] if self._shows_tokens else (),
        )

    def _without_thought(
        self, scores: Mapping[str, list[Any]] | None, piece: "_Piece"
    ) -> Mapping[str, list[Any]] | None:
        """Returns the scores of the answer's tokens; those of tokens that may become a thought are held back."""
        if not (self._undecided_scores or piece.is_undecided or piece.is_hidden):
            return scores
        entries = [*self._undecided_scores, *(scores or {}).get("content", [])]
        self._undecided_scores = entries if piece.is_undecided else []
        kept = [] if piece.is_undecided or piece.is_hidden else entries
        return {"content": kept} if scores is not None or kept else None


def add_delta(deltas: list[ChoiceDelta], new: ChoiceDelta) -> None:
    """Appends a choice's next delta, merged with the last unless that would change the order of what they have."""
    last = deltas[-1] if deltas else None
    if last is None or (new.thought and (last.text or last.calls)) or (new.text and last.calls):
        deltas.append(new)
    else:
        deltas[-1] = _merged(last, new)


def _merged(first: ChoiceDelta, second: ChoiceDelta) -> ChoiceDelta:
    """Merges two consecutive deltas of one choice."""
    return ChoiceDelta(
        second.index,
        first.text + second.text,
        first.tokens + second.tokens,
        second.finish_reason,
        first.cached_tokens + second.cached_tokens,
        _joined(first.logprobs, second.logprobs),
        first.logprob + second.logprob,
        first.calls + second.calls,
        second.progress or first.progress,
        first.thought + second.thought,
        first.thought_tokens + second.thought_tokens,
        second.cut or first.cut,
        stop=second.stop,
        token_ids=first.token_ids + second.token_ids,
    )


def _singles(delta: TokenDelta) -> Iterator[TokenDelta]:
    """Splits the delta into deltas of one token."""
    scores, last = delta.scores, len(delta.token_ids) - 1
    for i, token in enumerate(delta.token_ids):
        here = slice(i, i + 1)
        yield TokenDelta(
            (token,),
            delta.finish_reason if i == last else None,
            0 if i else delta.cached_tokens,
            None
            if scores is None
            else TokenScores(scores.logprobs[here], scores.top_token_ids[here], scores.top_logprobs[here]),
            None if i else delta.prompt,
        )


def _joined(
    first: Mapping[str, list[Any]] | None, second: Mapping[str, list[Any]] | None
) -> Mapping[str, list[Any]] | None:
    if first is None or second is None:
        return first if second is None else second
    return {name: entries + second[name] for name, entries in first.items()}


def _call_parser(job: Job) -> CallParser | ForcedCall | None:
    functions = job.functions
    if functions is None:
        return None
    if functions.mode == "named":
        return ForcedCall(functions.names[0])
    return CallParser(
        functions.names,
        only_calls=functions.mode == "list",
        parallel=functions.parallel,
        bare=functions.bare,
        schemas=functions.schemas,
        dialects=functions.dialects,
    )


class _Scores:
    """Converts one choice's scores to OpenAI's lists."""

    def __init__(self, model: ChatModel, job: Job, index: int) -> None:
        self._tokens = model.tokenizer.bytes
        self._prompt = job.request_of(index).prompt_token_ids if job.echoes else ()
        self._wanted = job.scores is not None
        self._lists = None if job.starts_text else CompletionLogprobs(model.tokenizer.bytes, job.scores or 0)

    def lists(self, delta: TokenDelta, tokens: int) -> Mapping[str, list[Any]] | None:
        """Returns the scores of the delta's first `tokens` tokens; in the first delta also of an echoed prompt."""
        if not self._wanted:
            return None
        if self._lists is None:
            if delta.scores is None:
                return None
            return {"content": chat_entries(self._tokens, delta.token_ids, delta.scores)[:tokens]}
        if delta.prompt is not None and delta.prompt.scores is not None:
            self._lists.add_unscored(self._prompt[0])
            self._lists.add(self._prompt[1:], delta.prompt.scores)
        if delta.scores is not None:
            self._lists.add(delta.token_ids[:tokens], delta.scores)
        return self._lists.pop()


class _ContentScores:
    """Selects the scores of content; drops those of function calls and their marks."""

    def __init__(self) -> None:
        self._unread: list[dict[str, Any]] = []  # scores of tokens that have produced no text so far
        self._pieces: list[tuple[int, list[dict[str, Any]]]] = []  # the parser's input: lengths, and scores

    def feed(
        self, entries: list[dict[str, Any]], text: str, content: str, held_characters: int
    ) -> list[dict[str, Any]]:
        """Returns the scores to report now; the parser got `text`, returned `content` and holds back the rest."""
        self._unread += entries
        if text:
            self._pieces.append((len(text), self._unread))
            self._unread = []
        selected: list[dict[str, Any]] = []
        end = sum(length for length, _ in self._pieces) - held_characters
        begin = end - len(content)
        kept, at = [], 0
        for length, scores in self._pieces:
            after = at + length
            if content and at < end and after > begin:
                selected += scores
                scores = []
            if after > end:
                kept.append((after - max(at, end), scores))
            at = after
        self._pieces = kept
        return selected

    def rest(self) -> list[dict[str, Any]]:
        """Returns the scores of tokens that produced no text up to the end."""
        return self._unread


@dataclass(slots=True)
class _Piece:
    """What some tokens add to a choice's texts."""

    text: str = ""
    thought: str = ""
    tokens: int = 0
    """Tokens after a stop string are not counted."""
    thought_tokens: int = 0
    is_hidden: bool = False
    """Whether they belong to a thought or to a hidden header."""
    is_undecided: bool = False
    """Whether they may turn out to begin a thought."""
    stop: str | None = None
    """The stop string that has ended the choice."""
    cut: ReasoningCut | None = None
    """What has ended the thought, if it was not the model."""


class _ChoiceText:
    """Turns one choice's tokens into thought and text, up to a stop string in the text."""

    def __init__(self, model: ChatModel, job: Job, budget: ThoughtBudget | None) -> None:
        self._watch = None if budget is None else ThoughtWatch(budget)
        self._detokenizer = model.thoughts.detokenizer(
            starts_text=job.starts_text,
            shows_calls=job.functions is not None,
            shows_thoughts=job.thought is not None,
        )
        self._thoughts = None if job.thought is None else splitter_of(job.thought)
        self._undecided_tokens = 0
        self._stops = StopStrings(job.stops)
        self._has_stops = bool(job.stops)

    @property
    def may_think(self) -> bool:
        """Whether more of a thought may follow."""
        return self._thoughts is not None and not self._thoughts.is_over

    def feed(self, delta: TokenDelta) -> _Piece:
        """Returns what the delta's tokens add, up to a stop string."""
        finished = delta.finish_reason is not None
        if not self._has_stops and not self.may_think:
            text = self._detokenizer.feed(delta.token_ids)
            return _Piece(text + self._rest(delta) if finished else text, tokens=len(delta.token_ids))
        piece = _Piece()
        for token in delta.token_ids:
            piece.tokens += 1
            if self._watch is not None:
                self._follow(self._watch, token, piece)
            self._add(piece, self._detokenizer.feed((token,)), tokens=1)
            if piece.stop is not None:
                return piece
        if finished:
            if delta.finish_reason == "length" and self._thoughts is not None and self._thoughts.is_in_thought:
                piece.cut = "length"
            self._add(piece, self._rest(delta), is_last=True)
        return piece

    def _follow(self, watch: ThoughtWatch, token: int, piece: _Piece) -> None:
        """Notes where the engine has ended the thought: its watch does the same with the same tokens."""
        watch.add(token)
        if watch.was_cut:
            piece.cut = "budget"
        if watch.was_cut or watch.is_over:
            self._watch = None

    def _add(self, piece: _Piece, text: str, *, tokens: int = 0, is_last: bool = False) -> None:
        """Adds the text of `tokens` tokens. is_last: flush what is held back."""
        if self._thoughts is not None and self.may_think:
            text = self._without_thought(self._thoughts, piece, text, tokens=tokens, is_last=is_last)
        shown, piece.stop = self._stops.feed(text)
        piece.text += shown if piece.stop is not None or not is_last else shown + self._stops.finish()

    def _without_thought(
        self, thoughts: ThoughtSplitter | ChannelSplitter, piece: _Piece, text: str, *, tokens: int, is_last: bool
    ) -> str:
        """Splits the thought off the text and returns the answer's part."""
        was_before_answer, was_in_header = thoughts.is_undecided or thoughts.is_thinking, thoughts.in_header
        thought, text = thoughts.feed(text)
        if is_last:
            more, rest = thoughts.finish()
            thought, text = thought + more, text + rest
        piece.thought += thought
        self._undecided_tokens += tokens
        piece.is_undecided = thoughts.is_undecided and not thoughts.in_header
        piece.is_hidden = piece.is_hidden or was_in_header or thoughts.in_header
        if not thoughts.is_undecided:
            if was_before_answer and thoughts.has_thought:
                piece.thought_tokens += self._undecided_tokens
                piece.is_hidden = piece.is_hidden or self._undecided_tokens > 0
            self._undecided_tokens = 0
        return text

    def _rest(self, last: TokenDelta) -> str:
        """Returns the held back end of the text. A character that the limit cut in two is dropped."""
        return "" if last.finish_reason == "length" else self._detokenizer.finish()
