"""The slash commands of a terminal chat: the table behind /help and the completions, and each command's code.

A command may raise ChatError, OpenAIError and Leave; the chat shows the error, and goes on.
"""

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from openai import NotFoundError

from app.client import attached, kept_chat, thinking, v1, wordings
from app.client.account import ChatError
from app.client.collections import collection_named
from app.client.talk import Talk

_MOST_TOKENS = 2**31 - 1


class Leave(Exception):  # noqa: N818
    """The chat ends."""


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    argument: str
    """The argument as /help shows it; empty: none."""
    does: str
    run: Callable[[Talk, str], None]
    is_for_users: bool = False
    """Whether it is about conversations that the service keeps."""


def run(talk: Talk, line: str) -> None:
    word, *rest = line.split(maxsplit=1)
    argument = rest[0].strip() if rest else ""
    name = word.removeprefix("/").lower()
    command = next((one for one in COMMANDS if one.name == name), None)
    if command is None:
        raise ChatError(f"There is no command {word}. /help lists them; with // in front, the line is sent as it is.")
    if argument and not command.argument:
        raise ChatError(f"/{name} takes nothing behind it. With // in front, the line is sent as it is.")
    if command.is_for_users and not talk.keeps():
        raise ChatError(f"/{name} is for users, whose conversations the service keeps: login comes first.")
    command.run(talk, argument)


def completions(typed: str) -> Iterable[str]:
    """Returns whole lines that begin with `typed`."""
    if not typed.startswith("/") or "\n" in typed:
        return
    for command in COMMANDS:
        word = f"/{command.name}"
        if word.startswith(typed) and word != typed:
            yield word
    if typed.startswith("/attach "):
        yield from (f"/attach {path}" for path in attached.completions(typed.removeprefix("/attach ")))
    for mode in thinking.MODES:
        line = f"/think {mode}"
        if typed.startswith("/think ") and line.startswith(typed) and line != typed:
            yield line
    for name in _SETTINGS:
        line = f"/set {name} "
        if typed.startswith("/set ") and line.startswith(typed) and line != typed:
            yield line


def _help(talk: Talk, _: str) -> None:
    width = max(len(f"/{one.name} {one.argument}") for one in COMMANDS)
    for one in COMMANDS:
        talk.screen.say(f"{f'/{one.name} {one.argument}':{width}}  {one.does}")
    talk.screen.say("login, logout, exit and quit are lines of their own. // in front sends a line that begins with /.")
    talk.screen.say("Alt+Enter, or \\ at the end: another line. Ctrl-C stops an answer; twice, or Ctrl-D, it leaves.")


def _new(talk: Talk, _: str) -> None:
    talk.new()
    talk.screen.say("A new conversation.")


def _list(talk: Talk, _: str) -> None:
    entries = kept_chat.listed(talk.account.client)
    if not entries:
        talk.screen.say("There are no conversations yet.")
    for number, entry in enumerate(entries, start=1):
        here = "*" if entry.id == talk.conversation_id else " "
        day = datetime.fromtimestamp(entry.updated_at).astimezone().strftime("%d %b %H:%M")
        title = " ".join(entry.title.split()) or "New chat"
        talk.screen.say(f"{here}{number:3}  {day}  {title[:80]}")


def _open(talk: Talk, argument: str) -> None:
    if not argument:
        raise ChatError("/open N: a number of /list, or an id.")
    if talk.model is None and not talk.find_model():
        return
    if argument.isdecimal():
        entries = kept_chat.listed(talk.account.client)
        if not 1 <= int(argument) <= len(entries):
            raise ChatError(f"/list has no number {argument}.")
        argument = entries[int(argument) - 1].id
    talk.open(argument)


def _title(talk: Talk, argument: str) -> None:
    if not argument:
        raise ChatError("/title TEXT: what the conversation is called.")
    kept_chat.rename(talk.account.client, _begun(talk), argument)
    talk.screen.say("Renamed.")


def _delete(talk: Talk, _: str) -> None:
    conversation_id = _begun(talk)
    if talk.reader.ask("Delete this conversation and its saved pages? yes or no: ").strip().lower() not in ("y", "yes"):
        talk.screen.say("Nothing is deleted.")
        return
    kept_chat.delete(talk.account.client, conversation_id)
    talk.new()
    talk.screen.say("Deleted. Your next line begins a new conversation.")


def _export(talk: Talk, argument: str) -> None:
    path = Path(argument).expanduser()
    form = path.suffix.removeprefix(".").lower()
    if form not in ("md", "json"):
        raise ChatError("/export FILE: its name ends in .md or .json.")
    content = talk.conversation().exported(talk.account.client, form)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
    except FileExistsError as error:
        raise ChatError(f"{path} is there already: choose another name.") from error
    except OSError as error:
        raise ChatError(f"{path}: {error.strerror}") from error
    talk.screen.say(f"Written to {path}.")


def _model(talk: Talk, argument: str) -> None:
    if argument:
        talk.use_model(argument)
        talk.screen.say(f"Answers come from {argument}.")
        return
    for model in v1.models(talk.account.client):
        here = "*" if talk.model is not None and model.id == talk.model.id else " "
        window = f", {model.context_tokens:,} tokens of context" if model.context_tokens else ""
        mute = "" if model.can_chat else ", no chat template: can't chat"
        talk.screen.say(f"{here} {model.id}{window}{mute}")


def _collection(talk: Talk, argument: str) -> None:
    client = talk.account.client
    if argument:
        chosen = None if argument == "none" else collection_named(client, argument).id
        talk.knobs = replace(talk.knobs, collection=chosen)
    found = list(client.vector_stores.list())
    if not found:
        talk.screen.say("There are no collections yet: `redoubt knowledge add DIR --to NAME` makes one.")
    for each in found:
        here = "*" if each.id == talk.knobs.collection else " "
        talk.screen.say(f"{here} {each.name}, {each.file_counts.completed:,} documents")


def _system(talk: Talk, argument: str) -> None:
    if argument:
        talk.knobs = replace(talk.knobs, system=None if argument == "none" else argument)
    talk.screen.say(f"System prompt: {talk.knobs.system or 'none'}")


def _set(talk: Talk, argument: str) -> None:
    name, _, value = argument.partition(" ")
    if name and name not in _SETTINGS:
        raise ChatError(f"/set knows {', '.join(_SETTINGS)}.")
    if name:
        read = _SETTINGS[name]
        changes: dict[str, Any] = {name: None if value.strip() in ("", "default") else read(value.strip())}
        talk.knobs = replace(talk.knobs, **changes)
    for each in [name] if name else _SETTINGS:
        set_to = getattr(talk.knobs, each)
        talk.screen.say(f"{each}: {'default' if set_to is None else set_to}")


def _think(talk: Talk, argument: str) -> None:
    if argument:
        talk.think(argument.lower())
    if talk.model is not None or talk.find_model():
        assert talk.model is not None
        talk.screen.say(thinking.described(talk.knobs.thinking, talk.model))


def _attach(talk: Talk, argument: str) -> None:
    if argument == "none":
        talk.files = ()
    elif argument and (talk.model is not None or talk.find_model()):
        assert talk.model is not None
        file, line = attached.read(talk.account.client, talk.model.id, argument)
        talk.files = [*talk.files, file]
        talk.screen.say(line)
    talk.screen.say(f"With your next question: {attached.together(talk.files)}.")


def _continue(talk: Talk, _: str) -> None:
    talk.go_on()


def _retry(talk: Talk, _: str) -> None:
    talk.retry()


def _edit(talk: Talk, _: str) -> None:
    talk.edit()


def _memory(talk: Talk, _: str) -> None:
    last = "no answer yet" if talk.usage is None else wordings.numbers(talk.usage, talk.model)
    talk.screen.say(f"Last answer: {last}.")
    if not talk.keeps():
        return
    try:
        use: Any = talk.account.client.get("/memory", cast_to=object)
    except NotFoundError:
        return  # the service saves no pages
    used, quota = use["bytes"] / 1e6, use["quota_bytes"] / 1e6
    talk.screen.say(f"Saved for you: {use['pages']:,} pages, {used:,.1f} of {quota:,.0f} MB.")


def _context(talk: Talk, _: str) -> None:
    usage, context = talk.usage, talk.context
    if usage is None or context is None:
        talk.screen.say("Nothing is known yet: the next answer tells.")
        return
    talk.screen.say(wordings.used(usage, context))
    talk.screen.say(talk.left_out() or "The model sees the whole chat.")


def _quit(talk: Talk, _: str) -> None:
    raise Leave


def _begun(talk: Talk) -> str:
    if talk.conversation_id is None:
        raise ChatError("This conversation has not begun yet.")
    return talk.conversation_id


def _number_between(least: float, most: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise ChatError(f"{text} is not a number from {least:g} to {most:g}.")
        return value

    return read


def _integer_between(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        digits = text.removeprefix("-")
        is_integer = digits.isascii() and digits.isdecimal() and len(digits) < 20
        if not is_integer or not least <= int(text) <= most:
            raise ChatError(f"{text} is not a whole number from {least} to {most}.")
        return int(text)

    return read


_SETTINGS: dict[str, Callable[[str], float | int]] = {
    "temperature": _number_between(0, 2),
    "top_p": _number_between(0, 1),
    "max_tokens": _integer_between(1, _MOST_TOKENS),
    "seed": _integer_between(-(2**63), 2**63 - 1),
}

COMMANDS = (
    Command("help", "", "lists these", _help),
    Command("new", "", "begins another conversation", _new),
    Command("list", "", "your conversations", _list, is_for_users=True),
    Command("open", "N", "goes on with one of them: its number, or its id", _open, is_for_users=True),
    Command("title", "TEXT", "names this conversation", _title, is_for_users=True),
    Command("delete", "", "deletes this conversation, after asking", _delete, is_for_users=True),
    Command("export", "FILE", "writes this conversation to a file, .md or .json", _export),
    Command("model", "[ID]", "the models; with an ID, answers come from that one", _model),
    Command(
        "collection",
        "[NAME]",
        "your collections of documents; with a NAME, answers are found in that one; none: in none",
        _collection,
        is_for_users=True,
    ),
    Command("system", "[TEXT]", "the system prompt; none: without one", _system),
    Command("set", "[NAME VALUE]", f"{', '.join(_SETTINGS)}; default: as the model has it", _set),
    Command("think", "[off|short|full]", "how much the model thinks before it answers, in this chat", _think),
    Command("attach", "[FILE]", "sends a file with the next question; none: without files", _attach),
    Command("continue", "", "goes on with an answer that was stopped or cut", _continue),
    Command("retry", "", "asks the last question again, with another seed", _retry),
    Command("edit", "", "changes the last question and asks it instead", _edit),
    Command("context", "", "how much of the context is used, and which turns the model no longer sees", _context),
    Command("memory", "", "how much the service remembers of this chat, and what is saved for you", _memory),
    Command("quit", "", "leaves", _quit),
)
