"""The element types of ggml (llama.cpp build 11434, ggml/src/ggml.c and ggml-common.h): how many bytes a row takes."""

from typing import Final, NamedTuple


class GgmlElement(NamedTuple):
    """An element type: `bytes` hold `block` elements."""

    name: str
    block: int
    bytes: int

    def row(self, elements: int) -> int:
        """Bytes of a row, whose last block may be partly used."""
        return -(-elements // self.block) * self.bytes


ELEMENTS: Final[dict[int, GgmlElement]] = {
    0: GgmlElement("f32", 1, 4),
    1: GgmlElement("f16", 1, 2),
    2: GgmlElement("q4_0", 32, 18),
    3: GgmlElement("q4_1", 32, 20),
    6: GgmlElement("q5_0", 32, 22),
    7: GgmlElement("q5_1", 32, 24),
    8: GgmlElement("q8_0", 32, 34),
    9: GgmlElement("q8_1", 32, 36),
    10: GgmlElement("q2_K", 256, 84),
    11: GgmlElement("q3_K", 256, 110),
    12: GgmlElement("q4_K", 256, 144),
    13: GgmlElement("q5_K", 256, 176),
    14: GgmlElement("q6_K", 256, 210),
    15: GgmlElement("q8_K", 256, 292),
    16: GgmlElement("iq2_xxs", 256, 66),
    17: GgmlElement("iq2_xs", 256, 74),
    18: GgmlElement("iq3_xxs", 256, 98),
    19: GgmlElement("iq1_s", 256, 50),
    20: GgmlElement("iq4_nl", 32, 18),
    21: GgmlElement("iq3_s", 256, 110),
    22: GgmlElement("iq2_s", 256, 82),
    23: GgmlElement("iq4_xs", 256, 136),
    24: GgmlElement("i8", 1, 1),
    25: GgmlElement("i16", 1, 2),
    26: GgmlElement("i32", 1, 4),
    27: GgmlElement("i64", 1, 8),
    28: GgmlElement("f64", 1, 8),
    29: GgmlElement("iq1_m", 256, 56),
    30: GgmlElement("bf16", 1, 2),
    34: GgmlElement("tq1_0", 256, 54),
    35: GgmlElement("tq2_0", 256, 66),
    39: GgmlElement("mxfp4", 32, 17),
    40: GgmlElement("nvfp4", 64, 36),
    41: GgmlElement("q1_0", 128, 18),
    42: GgmlElement("q2_0", 64, 18),
}
"""By number in the file; the gaps are types that ggml has removed."""

_BY_NAME: Final = {element.name: element for element in ELEMENTS.values()}


def type_numbered(number: int) -> GgmlElement | None:
    """Give the type with this number; None when ggml has none or has removed it."""
    return ELEMENTS.get(number)


def type_called(name: str) -> GgmlElement:
    """Give the type with this name; raises KeyError."""
    return _BY_NAME[name]
