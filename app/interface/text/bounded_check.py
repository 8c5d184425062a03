"""Loads a model's tokenizer and chat template as an ingress does, and tries them, within bounds of time and memory.

In a process of its own: a template is a program that came with a model, and may never end. What it does afterwards with
users' messages is not its concern.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from app.interface.errors import ApiError
from app.interface.text.chat_model import ChatModel
from app.interface.wire.chat import Message
from app.messages.model_card import ModelCard
from app.model_folder import ChatModelError
from app.sealing.image import SealedModelError
from app.sealing.sealed_model import open_model

CPU_S: Final = 60
"""A tokenizer of 260,000 tokens takes two seconds."""
_WALL_S: Final = 600
_MEMORY_BYTES: Final = 8 << 30


def check_model(card: ModelCard, command: str, *, cpu_s: int = CPU_S) -> Sequence[str]:
    """What the user should know of the model, a sentence each. Raises ChatModelError for one that can't be served.

    command: which takes --chat-template.
    """
    child = [sys.executable, "-m", __name__, str(cpu_s)]
    try:
        run = subprocess.run(child, input=json.dumps(card.to_wire()), capture_output=True, text=True, timeout=_WALL_S)
        answer = json.loads(run.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise ChatModelError(
            f"{card.chat_template or card.path}: its tokenizer and chat template could not be loaded within {cpu_s} s"
            f" and {_MEMORY_BYTES >> 30} GiB of memory; give another template with {command} --chat-template FILE"
        ) from error
    if "error" in answer:
        raise ChatModelError(answer["error"])
    remedy = f"give it a template that does with {command} --chat-template FILE"
    if not answer["can_chat"]:
        return [f"{card.name} has no chat template: it serves completions only. To chat, {remedy}."]
    if answer["refusal"]:
        return [f"{card.name} may not chat: {answer['refusal']} If no chat works, {remedy}."]
    return []


def _check(card: ModelCard) -> dict[str, object]:
    try:
        template = None if card.chat_template is None else Path(card.chat_template)
        chat = ChatModel.load(open_model(card), max_context_tokens=card.max_context_tokens, template=template)
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
