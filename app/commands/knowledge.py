"""`redoubt knowledge`: a user's collections of documents at a running service.

`collecting.py` does the work, and is imported only when a command runs.
"""

from pathlib import Path
from typing import Annotated

import typer

from app.commands.accounts import SERVICE, ApiKey, As, Url, service
from app.commands.one_line import fail, one_line_errors

knowledge = typer.Typer(help="Your collections of documents, which answers can be found in.", no_args_is_help=True)
Collection = Annotated[str, typer.Argument(metavar="COLLECTION", help="Its name or id.")]


@knowledge.command()
def add(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE|FOLDER...", help="Folders with all that is in them.")],
    collection: Annotated[
        str, typer.Option("--to", metavar="NAME", help="The collection; made if there is none of that name.")
    ],
    url: Url = SERVICE,
    as_: As = None,
    api_key: ApiKey = None,
) -> None:
    """Add documents to a collection, and wait until they are read. What is in it under the same path is replaced.

    The path of a file in a folder begins with the folder's name.
    """
    from app.commands.collecting import ERRORS, add_documents

    with service(url, as_, api_key) as asked, one_line_errors(*ERRORS):
        failed = add_documents(asked.client(), collection, paths, say=print)
    if failed:
        fail(f"{failed} could not be read", 1)


@knowledge.command("list")
def list_(
    collection: Annotated[str | None, typer.Argument(metavar="[COLLECTION]", show_default=False)] = None,
    url: Url = SERVICE,
    as_: As = None,
    api_key: ApiKey = None,
) -> None:
    """List your collections, or the documents of one."""
    from app.commands.collecting import ERRORS, listed

    with service(url, as_, api_key) as asked, one_line_errors(*ERRORS):
        for line in listed(asked.client(), collection):
            print(line)


@knowledge.command()
def search(
    collection: Collection,
    question: Annotated[str, typer.Argument(metavar="QUESTION")],
    url: Url = SERVICE,
    as_: As = None,
    api_key: ApiKey = None,
) -> None:
    """Print the passages of a collection that answer a question best."""
    from app.commands.collecting import ERRORS, found

    with service(url, as_, api_key) as asked, one_line_errors(*ERRORS):
        for line in found(asked.client(), collection, question):
            print(line)


@knowledge.command("rm")
def remove(
    collection: Collection,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Url = SERVICE,
    as_: As = None,
    api_key: ApiKey = None,
) -> None:
    """Delete a collection and its files: its key first, so that nobody can open its passages any more."""
    from app.commands.collecting import ERRORS, removed

    if not yes and not typer.confirm(f"Delete the collection {collection}?"):
        fail("nothing was deleted", 1)
    with service(url, as_, api_key) as asked, one_line_errors(*ERRORS):
        print(removed(asked.client(), collection))
