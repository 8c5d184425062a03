"""`/tokenize` and `/detokenize`, as in vLLM. No worker is asked.

A chat's tokens are those of its rendered template.
"""

from fastapi import Request
from fastapi.responses import Response

from app.interface.generate.reception import Reception
from app.interface.request import errors
from app.interface.request.callers import Caller
from app.interface.text.begun_answer import ending_options
from app.interface.thinking.requested import wanted_thinking
from app.interface.wire.tokenization import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse

MAX_BODY_BYTES = 4 << 20
"""A text may be longer than the context, but other long bodies wait while it is tokenized."""


class TokenizationRoutes:
    """The routes of one service."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception

    async def tokenize(self, request: Request) -> Response:
        """`POST /tokenize`."""
        answer = await self._reception.read_and_plan(
            request, TokenizeRequest, self._tokenized, max_bytes=MAX_BODY_BYTES
        )
        return Response(answer, media_type="application/json")

    async def detokenize(self, request: Request) -> Response:
        """`POST /detokenize`."""
        answer = await self._reception.read_and_plan(
            request, DetokenizeRequest, self._detokenized, max_bytes=MAX_BODY_BYTES
        )
        return Response(answer, media_type="application/json")

    def _tokenized(self, body: TokenizeRequest, _: Caller) -> str:
        model = self._reception.service.model(body.model).chat
        if body.messages is not None:
            if body.prompt is not None:
                raise errors.invalid("'prompt' and 'messages' contradict each other.", "prompt", "invalid_value")
            if body.add_special_tokens:
                message = "'add_special_tokens' is for a prompt; messages get what their template writes."
                raise errors.invalid(message, "add_special_tokens", "invalid_value")
            options = ending_options(
                wanted_thinking(model.thoughts.default, variables=body.chat_template_kwargs),
                body.messages,
                continues=body.continue_final_message,
                opens_answer=body.add_generation_prompt,
            )
            tokens = model.chat_prompt(body.messages, body.tools or (), bounded=False, options=options)
        elif body.prompt is None:
            raise errors.invalid("'prompt' is missing, or 'messages'.", "prompt", "missing_required_parameter")
        elif body.continue_final_message or body.add_generation_prompt is not None:
            field = "continue_final_message" if body.continue_final_message else "add_generation_prompt"
            raise errors.invalid(f"'{field}' is allowed only with 'messages'.", field, "invalid_value")
        elif body.tools is not None:
            raise errors.invalid("'tools' is allowed only with 'messages'.", "tools", "invalid_value")
        elif body.chat_template_kwargs:
            message = "'chat_template_kwargs' is allowed only with 'messages'."
            raise errors.invalid(message, "chat_template_kwargs", "invalid_value")
        else:
            starts = body.add_special_tokens is not False
            tokens = model.raw_prompt(body.prompt, bounded=False, starts_text=starts)
        return TokenizeResponse(
            count=len(tokens),
            max_model_len=model.context_tokens,
            tokens=tokens,
            token_strs=model.tokenizer.names(tokens) if body.return_token_strs else None,
        ).model_dump_json()

    def _detokenized(self, body: DetokenizeRequest, _: Caller) -> str:
        model = self._reception.service.model(body.model).chat
        model.check_vocabulary(body.tokens, "tokens")
        return DetokenizeResponse(prompt=model.tokenizer.text(body.tokens)).model_dump_json()
