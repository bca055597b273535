"""The command of a holder's pod: it has a card of a vendor's plugin as long as it waits. Imports nothing else."""

import signal

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main() -> None:
    """Wait for the end."""
    # The first process of a container is told only of signals that it handles or blocks.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    signal.sigwait(SIGNALS)


if __name__ == "__main__":
    main()
