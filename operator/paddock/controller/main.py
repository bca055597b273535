"""Entry point of `paddock-operator`: what it needs is imported once it is known to be wanted, on both processors."""

import argparse
import importlib
import os
import sys
import threading

from paddock import __version__


def main() -> None:
    """Read the command line and the environment, and run the operator."""
    parser = argparse.ArgumentParser(prog="paddock-operator", description="The Paddock operator. Settings: PADDOCK_*.")
    parser.add_argument("--version", action="version", version=f"paddock-operator {__version__}")
    parser.parse_args()
    # Half of this import is the reading of the system's certificates, beside which Python can work.
    threading.Thread(target=importlib.import_module, args=("aiohttp",), daemon=True).start()
    from paddock.controller.operate import run  # noqa: PLC0415 see above
    from paddock.controller.settings import Settings, SettingsError  # noqa: PLC0415

    try:
        settings = Settings.from_environment(os.environ)
    except SettingsError as error:
        sys.stderr.write(f"paddock-operator: {error}\n")
        sys.exit(2)
    sys.exit(run(settings))
