"""EML: who wrote to whom, when, about what, and the text. Attachments are named, and not read."""

from email import policy
from email.message import EmailMessage, MIMEPart
from email.parser import BytesParser
from typing import Final

from app.documents.document import Content, Section, clean_name
from app.documents.web import as_markdown

_HEADERS = ("From", "To", "Cc", "Date", "Subject")
_MOST_NAMED: Final = 16


def read(data: bytes) -> Content:
    """Returns the message."""
    message = BytesParser(EmailMessage, policy=policy.default).parsebytes(data)
    lines = [f"{name}: {' '.join(str(message[name]).split())}" for name in _HEADERS if message[name] is not None]
    body = message.get_body(("plain", "html"))
    text, notes = "", list[str]()
    if body is not None:
        text = _content(body)
        if body.get_content_type() == "text/html":
            text, notes = as_markdown(text)
    names = [clean_name(each.get_filename() or "without a name") for each in message.iter_attachments()]
    notes += [f'The attachment "{name}" is not read: attach it itself.' for name in names[:_MOST_NAMED]]
    if len(names) > _MOST_NAMED:
        notes.append(f"{len(names) - _MOST_NAMED:,} more attachments are not read.")
    return Content([Section("\n".join(lines) + "\n\n" + text)], notes)


def _content(part: MIMEPart) -> str:
    try:
        return str(part.get_content())
    except (LookupError, UnicodeError, OSError):  # a codec that is not there can't be looked for
        payload = part.get_payload(decode=True)
        return payload.decode("utf-8", "replace") if isinstance(payload, bytes) else ""
