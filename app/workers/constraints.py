"""Compiles JSON schemas and grammars to the engine's TokenConstraint, with llguidance.

Compiling runs in a thread of its own, within limits on size and work. The result is cached for the next request with
the same schema. Native code makes the masks without the interpreter lock. Knows nothing of requests, HTTP or Ray.
"""

import asyncio
import ctypes
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import llguidance
import numpy as np
from numpy.typing import NDArray

from app.control_tokens import Aliases
from app.engine.model_runner import TokenConstraint
from app.messages.failures import ConstraintError
from app.messages.grammar import HEADER, OWN_HEADER, OWN_RULE, SPACING, OwnGrammar, answer_of, parts_of, without_begun
from app.model_folder import ModelFolder, read_end_token_ids
from app.workers.client_grammars import GrammarError, lark_of, reason_of

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions


MAX_CACHED = 32
"""The most compiled schemas in the cache. The limits of `_matcher` bound the memory of each."""
MAX_USES = 1024
"""The most outputs per compilation. They share states that are added as they run, which must not grow without bound."""
MAX_REASON_CHARACTERS = 400
TRIM_EVERY = 16
"""How many schemas are dropped between two calls of malloc_trim, which returns their memory to the system."""
STACK_BYTES = 256 << 20
"""Of the compiler's thread: llguidance recurses into schemas and grammars, and what exhausts a stack ends the process.

A schema of 64 KiB takes up to 32 MiB. What is not used takes no memory."""
MAX_BLAMED = 16
"""The most definitions that are compiled one by one to find the wrong one."""


class Constraints:
    """Makes the constraints of one model."""

    def __init__(self, folder: ModelFolder, vocab_size: int) -> None:
        """Makes the constraints of one model.

        folder: a converted model. vocab_size: the model's, which may exceed the tokenizer's.
        """
        self._folder = folder
        self.vocab_size = vocab_size
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")
        usual_bytes = threading.stack_size(STACK_BYTES)
        self._tokenizer = self._thread.submit(self._open)  # starts the thread
        threading.stack_size(usual_bytes)
        self._cache: OrderedDict[str, _Compiled] = OrderedDict()
        self._dropped = 0

    async def make(self, schema: str) -> TokenConstraint:
        """Makes a constraint for one output. Raises ConstraintError that says what is wrong with the schema."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.compile, schema)

    def compile(self, schema: str) -> TokenConstraint:
        """Does the work of `make` synchronously, in the compiler's thread."""
        schema, begun = without_begun(schema)
        for old in [key for key, compiled in self._cache.items() if compiled.failed or compiled.uses >= MAX_USES]:
            self._drop(old)
        compiled = self._cache.get(schema)
        if compiled is None:
            matcher = self._compile(schema)
            self._check_answer(schema)
            compiled = self._cache[schema] = _Compiled(matcher, self._first_mask(matcher, schema))
            if len(self._cache) > MAX_CACHED:
                self._drop(next(iter(self._cache)))
        self._cache.move_to_end(schema)
        compiled.uses += 1
        return _Constraint(compiled) if not begun else self._going_on(compiled, begun)

    def _going_on(self, compiled: "_Compiled", begun: str) -> TokenConstraint:
        """Returns the constraint of an output that goes on with a text. Raises ConstraintError if it can't."""
        matcher = compiled.matcher.deep_copy()
        if not matcher.consume_tokens(self._tokenizer.result().tokenize_str(begun)):
            raise ConstraintError("The answer can't go on: what it has begun with does not follow its form")
        return _Constraint(_Compiled(matcher, self._first_mask(matcher, "")))

    def _check_answer(self, schema: str) -> None:
        """Raises ConstraintError if no answer could follow a thought, which would be found only after it."""
        if schema.startswith((HEADER, OWN_HEADER)) and (answer := answer_of(schema)) is not None:
            self._first_mask(self._compiled(answer), answer)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _drop(self, schema: str) -> None:
        del self._cache[schema]
        self._dropped += 1
        if self._dropped % TRIM_EVERY == 0 and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
            trim(0)

    def _open(self) -> llguidance.LLTokenizer:
        tokenizer = json.loads((self._folder / "tokenizer.json").read_text(encoding="utf-8"))
        ends = sorted(read_end_token_ids(self._folder))
        return llguidance.LLTokenizer(
            json.dumps(_with_unwritable_names(tokenizer)),
            n_vocab=self.vocab_size,
            eos_token=ends,
            slices=llguidance.LLTokenizer.json_slices(),
        )

    def _compile(self, schema: str) -> llguidance.LLMatcher:
        try:
            return self._compiled(schema)
        except ConstraintError:
            self._blame_definition(schema)
            raise

    def _blame_definition(self, grammar: str) -> None:
        """Raises ConstraintError naming the first of several parts that can't be compiled by itself."""
        parts = [grammar]
        if grammar.startswith((HEADER, OWN_HEADER)):
            parts = parts_of(grammar)
        if len(parts) != 1 or parts[0].startswith((HEADER, OWN_HEADER)):
            self._blame_part(parts)
            return
        schema = parts[0]  # perhaps after the model's thinking
        value = json.loads(schema)
        definitions = value.get("$defs") if isinstance(value, dict) else None
        if not isinstance(definitions, dict) or len(definitions) < 2:
            return
        options = {name: value[name] for name in ("x-guidance",) if name in value}
        for name in list(definitions)[:MAX_BLAMED]:
            try:
                self._compiled(json.dumps(options | {"$ref": f"#/$defs/{name}", "$defs": definitions}))
            except ConstraintError as error:
                error.definition = name
                raise

    def _blame_part(self, parts: Sequence[str]) -> None:
        """Does the same for a grammar's parts. The last one, which may be the answer's, is always tried."""
        for i in [*range(len(parts))[-1:], *range(min(len(parts) - 1, MAX_BLAMED))]:
            try:
                self._compiled(parts[i])
            except ConstraintError as error:
                error.definition = f"f{i}"
                raise

    def _first_mask(self, matcher: llguidance.LLMatcher, schema: str) -> NDArray[np.uint32]:
        """The first mask.

        It is the same for every output and takes longest, so the engine's thread must not make it.
        """
        mask = np.zeros(-(-self.vocab_size // 32), np.uint32)
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if matcher.is_error():
            raise ConstraintError(_refused(schema), _one_line(matcher.get_error()))
        return mask

    def _compiled(self, schema: str) -> llguidance.LLMatcher:
        if schema.startswith(OWN_HEADER):
            return self._own(schema)
        if schema.startswith(HEADER):
            return self._matcher(schema, schema)
        try:
            grammar = llguidance.LLMatcher.grammar_from_json_schema(
                schema, defaults=cast("JsonCompileOptions", SPACING)
            )
        except ValueError as error:
            raise ConstraintError(_REFUSED, _one_line(str(error))) from None
        return self._matcher(grammar, schema)

    def _own(self, schema: str) -> llguidance.LLMatcher:
        """Compiles a client's grammar within one of ours."""
        main, own = OwnGrammar.of(schema)
        try:
            text = lark_of(own)
        except GrammarError as error:
            raise ConstraintError(_GRAMMAR_REFUSED, _one_line(str(error))) from None
        named = [{"name": "main", "lark_grammar": main}, {"name": OWN_RULE.removeprefix("@"), "lark_grammar": text}]
        return self._matcher(json.dumps({"grammars": named}), schema, own)

    def _matcher(self, grammar: str, schema: str, own: OwnGrammar | None = None) -> llguidance.LLMatcher:
        """schema: what the grammar was made of. own: the client's grammar in it."""
        limits = llguidance.LLParserLimits(
            initial_lexer_fuel=1_000_000,
            step_lexer_fuel=100_000,
            step_max_items=20_000,
            max_lexer_states=20_000,
            max_grammar_size=100_000,
            verbose_errors=False,
        )
        matcher = llguidance.LLMatcher(self._tokenizer.result(), grammar, log_level=0, limits=limits)
        if matcher.is_error() or matcher.is_stopped():
            raise ConstraintError(_refused(schema), _one_line(reason_of(matcher.get_error(), own)) or "nothing fits it")
        return matcher


_REFUSED = "The schema can't be followed"
_GRAMMAR_REFUSED = "The grammar can't be followed"
_NO_END = "NoExtensionBias"
"""llguidance's stop reason where no token may come first."""


@dataclass(slots=True)
class _Compiled:
    matcher: llguidance.LLMatcher
    first_mask: NDArray[np.uint32]
    uses: int = 0
    failed: bool = False
    """Whether an output has exceeded the complexity limit, which the next output would too."""


class _Constraint:
    """One output's state in a schema."""

    def __init__(self, compiled: _Compiled, *, began: bool = False) -> None:
        self._compiled = compiled
        self._matcher = compiled.matcher.deep_copy()
        self._began = began
        self.error: str | None = None

    def fill_mask(self, mask: NDArray[np.uint32]) -> None:
        if not self._began:
            mask[:] = self._compiled.first_mask
            return
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._check()

    def accept(self, token: int) -> None:
        self._began = True
        self._matcher.consume_token(token)
        self._check()

    def follows(self, tokens: Sequence[int]) -> int:
        return self._matcher.validate_tokens(list(tokens))

    def forced(self) -> Sequence[int]:
        return self._matcher.deep_copy().compute_ff_tokens()  # of a copy, for it may exceed a limit

    def copy(self) -> "_Constraint":
        return _Constraint(_Compiled(self._matcher, self._compiled.first_mask), began=self._began)

    def _check(self) -> None:
        if self.error is None and self._matcher.is_error():
            self._compiled.failed = True
            self.error = _one_line(self._matcher.get_error()) or "no reason"


def _refused(schema: str) -> str:
    is_grammar = schema.startswith(OWN_HEADER) or (schema.startswith(HEADER) and "%json " not in schema)
    return _GRAMMAR_REFUSED if is_grammar else _REFUSED


def _with_unwritable_names(tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """Renames special tokens in `tokenizer.json` to names that no text contains.

    Grammars name such tokens by their ids. Otherwise, where only one text can follow, as with a constant of a schema,
    llguidance would allow the special tokens that the tokenizer finds in that text, and then refuse them, which ends
    the output. It takes every token that is spelled like `<tool_call>` for special, whether or not it is.
    """
    added = tokenizer.get("added_tokens") or []
    names = {token["content"] for token in added if token["special"] or re.fullmatch(r"<.*>", token["content"])}
    renamed = Aliases(names).in_tokenizer(tokenizer)
    for token, other in zip(added, renamed["added_tokens"], strict=True):
        other["special"] = token["content"] in names
    return renamed


def _one_line(reason: str) -> str:
    text = " ".join(reason.removesuffix("<non-verbose/>").split())
    if text == _NO_END:
        return "nothing can follow it, as where a reference leads back to itself with nothing in between"
    return text if len(text) <= MAX_REASON_CHARACTERS else f"{text[:MAX_REASON_CHARACTERS]}…"
