"""The program `paddock-fetch`: headers and files of models that are far away.

    paddock-fetch header SOURCE                    one line: PADDOCK-HEADER and a SourceAnswer
    paddock-fetch get SOURCE --cache DIR           lines of Progress, at last Done or Failed
    paddock-fetch hold KEY... --cache DIR          holds a lease on models until SIGTERM (for a sidecar)
    paddock-fetch cache list|verify|clean|clear --cache DIR

Settings come from the environment (PADDOCK_FETCH_...), credentials from the files of a mounted Secret (--credentials).
A process that is killed at any moment leaves nothing half made where somebody looks for models.
"""

import argparse
import gc
import sys
from collections.abc import Sequence
from pathlib import Path

from paddock import __version__
from paddock.fetch import near


def parser() -> argparse.ArgumentParser:
    """Give the parser of the command line."""
    top = argparse.ArgumentParser(prog="paddock-fetch", description="Models from anywhere, once, beside the GPU.")
    top.add_argument("--version", action="version", version=f"paddock-fetch {__version__}")
    commands = top.add_subparsers(dest="command", required=True)
    head = commands.add_parser("header", help="read the header of a model and say which content the source has")
    fetch = commands.add_parser("get", help="bring all files of a model into the cache")
    for command in (head, fetch):
        command.add_argument("source", metavar="SOURCE", help="hf:// https:// s3:// gs:// az:// oci:// ollama://")
        command.add_argument("--credentials", type=Path, metavar="DIR", help="folder of a mounted Secret")
    fetch.add_argument("--key", help="the content that is expected, from header; needs no network when it is cached")
    fetch.add_argument("--sha256", action="append", default=[], metavar="[NAME=]HEX", help="what a file must have")
    fetch.add_argument("--limit", type=int, metavar="BYTES", help="size of the cache; unused models go, oldest first")
    fetch.add_argument("--name", default="", help="what messages call it")
    fetch.add_argument("--bytes", type=int, default=0, metavar="BYTES", help="size of it, beside others")
    fetch.add_argument(
        "--beside", action="append", default=[], metavar="JSON", help="fetch this too: source, name, key, sha256, ..."
    )
    hold = commands.add_parser("hold", help="hold a lease on cached models until SIGTERM")
    hold.add_argument("key", metavar="KEY", nargs="+")
    cache = commands.add_parser("cache", help="look after the cache of this node")
    cache.add_argument("action", choices=["list", "verify", "clean", "clear"])
    cache.add_argument("--key", action="append", default=[], help="verify, clear: only these models")
    cache.add_argument("--limit", type=int, metavar="BYTES", help="clean: size to come down to")
    for command in (fetch, hold, cache):
        command.add_argument("--cache", type=Path, required=True, metavar="DIR", help="folder of the cache")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; gives the exit code (api.fetched.EXIT_CODES; 1 = a fault of the program, 2 = wrong usage)."""
    arguments = parser().parse_args(argv)
    done = {"get": near.found, "hold": near.held}.get(arguments.command)
    if done is not None and done(arguments):
        return 0
    gc.disable()  # what is imported stays, and looking through it again and again takes a tenth of the start
    from paddock.fetch.commands import run  # noqa: PLC0415 the usual start of a server needs none of it

    gc.freeze()
    gc.enable()
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
