"""Loads and tries a model's tokenizer and chat template as an ingress does, within limits of time and memory.

It runs in a child process: a tokenizer whose rules double a text never ends and can't be interrupted. The check takes
seconds, so files that passed are remembered by digest. It does not cover later work on users' messages.
"""

import hashlib
import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from app.interface.request.errors import ApiError
from app.interface.text.chat_model import ChatModel
from app.interface.text.encoder_model import EncoderModel
from app.interface.wire.chat import Message
from app.messages.model_card import ModelCard
from app.model_folder import SMALL_FILES, ChatModelError, encoder_settings, read_json
from app.sealing.image import SealedModelError
from app.sealing.sealed_model import open_model

CPU_S: Final = 60
"""A tokenizer of 260,000 tokens takes two seconds."""
_WALL_S: Final = 600
_MEMORY_BYTES: Final = 8 << 30


def check_model(card: ModelCard, command: str, *, passed: Path, cpu_s: int = CPU_S) -> Sequence[str]:
    """Returns warnings for the user, a sentence each. Raises ChatModelError if the model can't be served.

    command: the command that takes --chat-template. passed: a folder for digests of checked files; created if missing.
    """
    try:
        mark = passed / _digest(card)
    except SealedModelError as error:
        raise ChatModelError(str(error)) from error
    except (OSError, ValueError):  # the check reports which file, and why
        answer = _checked(card, cpu_s)
    else:
        try:
            answer = json.loads(mark.read_bytes())
        except (OSError, ValueError):
            answer = _checked(card, cpu_s)
            with suppress(OSError):
                passed.mkdir(mode=0o700, parents=True, exist_ok=True)
                mark.write_text(json.dumps(answer), encoding="utf-8")
    remedy = f"{command} --chat-template FILE"
    if not answer["can_chat"]:
        return [f"{card.name} has no chat template: it serves completions only. To chat, give it one: {remedy}."]
    if answer["refusal"]:
        return [f"{card.name} may not chat: {answer['refusal']} If no chat works, give it another template: {remedy}."]
    return []


def _digest(card: ModelCard) -> str:
    """Hashes the loaded files and the code that loads them. Raises SealedModelError, OSError, ValueError."""
    model = open_model(card)
    files = [model / name for name in SMALL_FILES]
    texts = [file.read_text(encoding="utf-8") if file.is_file() else None for file in files]
    if card.chat_template is not None:
        texts.append(Path(card.chat_template).read_text(encoding="utf-8"))
    code = [path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("*.py"))]
    libraries = [version(name) for name in ("jinja2", "tokenizers")]
    return hashlib.sha256(json.dumps([texts, code, libraries]).encode()).hexdigest()


def _checked(card: ModelCard, cpu_s: int) -> dict[str, Any]:
    """Runs the check in the child process. Raises ChatModelError."""
    child = [sys.executable, "-m", __name__, str(cpu_s)]
    try:
        run = subprocess.run(child, input=json.dumps(card.to_wire()), capture_output=True, text=True, timeout=_WALL_S)
        answer: dict[str, Any] = json.loads(run.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise ChatModelError(
            f"{card.path}: its tokenizer could not be loaded within {cpu_s} s and {_MEMORY_BYTES >> 30} GiB of memory;"
            " convert the model again from a source that you trust"
        ) from error
    if "error" in answer:
        raise ChatModelError(answer["error"])
    return answer


def _check(card: ModelCard) -> dict[str, object]:
    try:
        files = open_model(card)
        if encoder_settings(read_json(files / "config.json")) is not None:
            EncoderModel.load(files, max_context_tokens=card.max_context_tokens).tokens("Hello")
            return {"can_chat": True, "refusal": ""}  # nothing to warn of
        template = None if card.chat_template is None else Path(card.chat_template)
        chat = ChatModel.load(files, max_context_tokens=card.max_context_tokens, template=template)
        if chat.can_chat:
            chat.chat_prompt([Message(role="user", content="Hello")])
    except (ChatModelError, SealedModelError) as error:
        return {"error": str(error)}
    except ApiError as error:
        return {"can_chat": True, "refusal": error.message}
    return {"can_chat": chat.can_chat, "refusal": ""}


if __name__ == "__main__":
    spent = resource.getrusage(resource.RUSAGE_SELF)
    limit_s = int(spent.ru_utime + spent.ru_stime) + 1 + int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    print(json.dumps(_check(ModelCard.from_wire(json.load(sys.stdin)))))
