"""A short program leaves nothing open, whatever it does."""

import gc
import sys
import warnings

import pytest

from paddock.agent.processes import MOST_OUTPUT, Runner


@pytest.mark.parametrize(
    "program",
    [
        "print('{}')",
        f"import sys; sys.stdout.write('x' * {2 * MOST_OUTPUT})",
        "import time; print('x' * 100_000, flush=True); time.sleep(60)",
        "import os, signal; os.write(1, b'x' * 60_000); os.kill(os.getpid(), signal.SIGKILL)",
    ],
)
async def test_no_pipe_stays_open(program: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        outcome = await Runner().run([sys.executable, "-c", program], {}, limit=2)
        gc.collect()
    assert outcome.gone
