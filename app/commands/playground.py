"""`redoubt playground`."""

from typing import Annotated

import typer

from app.commands.one_line import fail, one_line_errors


def playground(
    url: Annotated[str, typer.Option(help="The address of the service.")] = "http://127.0.0.1:8000",
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0: a free one.", min=0, max=65535)] = 7860,
) -> None:
    """Compare two models, or two ways of decoding, on the same question in the browser. Ctrl-C stops it."""
    if not url.startswith(("http://", "https://")):  # before the import, which takes seconds
        fail(f"--url {url}: not an address such as http://127.0.0.1:8000", 2)
    from app.playground.program import PlaygroundError, serve

    with one_line_errors(PlaygroundError):
        serve(url, host, port)
