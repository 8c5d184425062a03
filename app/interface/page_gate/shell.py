"""The document that Gradio answers for `/`, with the chat surface in it and a policy of its own.

The policy allows the inline scripts that Gradio wrote, each by its hash, and no other. Knows nothing of what the
surface does.
"""

import base64
import hashlib
import html
import re

_INLINE = re.compile(rb"<script(?![^>]*\ssrc=)[^>]*>(.*?)</script>", re.DOTALL | re.IGNORECASE)


def with_surface(document: bytes, scripts: list[str], styles: list[str], *, has_accounts: bool) -> bytes:
    """With these addresses as modules and style sheets at the end of its head, and whether there may be a user."""
    tags = [f'<link rel="stylesheet" href="{html.escape(style)}">' for style in styles]
    tags += [f'<script type="module" src="{html.escape(script)}"></script>' for script in scripts]
    tags.append('<meta name="color-scheme" content="light dark">')
    if has_accounts:
        tags.append('<meta name="redoubt-accounts" content="yes">')
    # The last one: a script before it may quote such a tag.
    head, end, rest = document.rpartition(b"</head>")
    return head + "".join(tags).encode() + end + rest


def policy(document: bytes) -> str:
    """The document's Content-Security-Policy. What a model writes can neither run nor load anything."""
    hashes = (base64.b64encode(hashlib.sha256(script).digest()).decode() for script in _INLINE.findall(document))
    return "; ".join(
        (
            "default-src 'none'",
            " ".join(("script-src 'self'", *(f"'sha256-{one}'" for one in hashes))),
            "style-src 'self' 'unsafe-inline'",  # Gradio's, and where KaTeX puts its glyphs
            "connect-src 'self'",
            "img-src 'self' data:",
            "font-src 'self'",
            "manifest-src 'self'",
            "form-action 'self'",
            "frame-ancestors 'self'",
            "base-uri 'self'",  # Gradio's document has a base
        )
    )
