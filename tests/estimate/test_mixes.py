"""Every published shape stays a readable model in every quantization."""

import pytest

from estimate.corpus import SHAPES
from estimate.models import check_mixes, parts


@pytest.mark.parametrize("name", SHAPES)
def test_the_mixes_fall_in_size_and_stay_readable(name: str) -> None:
    check_mixes(parts(name))
