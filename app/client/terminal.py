"""A chat in the terminal, over HTTP: the service is a URL. Knows nothing of models, tokens or Ray.

Line editing and history are readline's; what was typed is kept in memory only.
"""

import contextlib
from collections.abc import Iterator

from openai import APIConnectionError, APIStatusError, OpenAIError, omit
from openai.types.chat import ChatCompletionMessageParam

from app.client import v1

LEAVE = frozenset({"exit", "quit"})
DIM, PLAIN = "\033[2m", "\033[0m"


class ChatError(Exception):
    """The chat cannot go on; the message says why and what to do."""


class TerminalChat:
    """One conversation. Raises ChatError where the service is not there or has no such model."""

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        system: str | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        api_key: str | None = None,
    ) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")
        if not self._url.startswith(("http://", "https://")):
            raise ChatError(f"--url {url}: not an address such as http://127.0.0.1:8000")
        self._client = v1.connect(self._url, api_key)
        self._temperature = omit if temperature is None else temperature
        self._max_tokens = omit if max_tokens is None else max_tokens
        self._messages: list[ChatCompletionMessageParam] = []
        if system:
            self._messages.append({"role": "system", "content": system})
        self.model = self._choose_model(model)

    def run(self) -> None:
        """Reads lines and prints answers until exit, quit or the end of input."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (input() edits lines once it is loaded)
        print(f"{DIM}{self.model} at {self._url}. Ctrl-C stops an answer; exit or Ctrl-D leaves.{PLAIN}")
        while True:
            try:
                line = input("> ").strip()
            except KeyboardInterrupt:
                print()
                continue
            except EOFError:
                print()
                return
            if line.lower() in LEAVE:
                return
            if line:
                self._turn(line)

    def _turn(self, question: str) -> None:
        """One question and its answer; a question that failed is taken back, to be asked again."""
        self._messages.append({"role": "user", "content": question})
        answer = ""
        try:
            for text in self._stream():
                answer += text
                print(text, end="", flush=True)
            print()
        except KeyboardInterrupt:
            print(f" {DIM}(stopped){PLAIN}")
        except OpenAIError as error:
            print(f"{DIM}{_reason(error, self._url)}{PLAIN}")
        if answer:
            self._messages.append({"role": "assistant", "content": answer})
        else:
            self._messages.pop()

    def _stream(self) -> Iterator[str]:
        """The answer as it is made. Leaving early closes the connection, and so ends the work."""
        with self._client.chat.completions.create(
            model=self.model,
            messages=self._messages,
            stream=True,
            temperature=self._temperature,
            max_tokens=self._max_tokens,
        ) as chunks:
            for chunk in chunks:
                if text := v1.text_of(chunk):
                    yield text

    def _choose_model(self, wanted: str | None) -> str:
        try:
            served = v1.models(self._client)
        except OpenAIError as error:
            raise ChatError(_reason(error, self._url)) from error
        if not served:
            raise ChatError(f"{self._url} serves no model")
        if wanted is not None and wanted not in served:
            raise ChatError(f"{self._url} does not serve {wanted}, only {', '.join(served)}")
        return wanted or served[0]


def _reason(error: OpenAIError, url: str) -> str:
    if isinstance(error, APIConnectionError):
        return f"no answer from {url}: is the service running? (`redoubt serve`)"
    if isinstance(error, APIStatusError):
        return f"{url} says: {v1.reason(error)}"
    return v1.reason(error)
