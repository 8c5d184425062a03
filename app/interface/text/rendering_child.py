"""The process in which a model's chat template runs: sandboxed Jinja, with limits of time, memory and length.

A template is a program that came with a model. Python can't interrupt every operation, so the kernel kills a process
that exceeds a limit. It reads pickles from `rendering`, which starts it as a script: the template's source, then the
variables of each rendering. It imports nothing of this project.
"""

import json
import os
import pickle
import resource
import signal
import sys
from datetime import datetime
from typing import Any, BinaryIO

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


def main(requests: BinaryIO, answers: BinaryIO, cpu_s: float, memory_bytes: int, text_bytes: int) -> None:
    """Answers requests until their end."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    template: jinja2.Template | None = None
    while True:
        try:
            request = pickle.load(requests)
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # the signal is not handled, so it kills the process
        try:
            if template is None:
                template, text = environment().from_string(request), ""
            else:
                text = template.render(request)
            kind, answer = b"text", text.encode("utf-8", "surrogatepass")
        except MemoryError:
            os._exit(1)
        except Exception as error:
            kind, answer = b"refusal", _reason(error).encode("utf-8", "surrogatepass")
        signal.setitimer(signal.ITIMER_PROF, 0)
        if len(answer) > text_bytes:
            os._exit(1)
        answers.write(b"%s %d\n" % (kind, len(answer)))
        answers.write(answer)
        answers.flush()
        del request, answer  # do not keep the request's text


def environment() -> ImmutableSandboxedEnvironment:
    """Returns Jinja as chat templates expect it: the names and whitespace rules of transformers."""
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = _strftime_now
    return made


class _Generation(Extension):
    """The `{% generation %}` block marks the assistant's text for training; here only its body is rendered."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's own interface)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Returns plain JSON; Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _reason(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"line {error.lineno}: {error.message}"
    message = error.message if isinstance(error, jinja2.TemplateError) else None
    return str(message or type(error).__name__)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with its parent
    main(sys.stdin.buffer, sys.stdout.buffer, float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
