"""The header of a GGUF file, versions 2 and 3: metadata and tensor directory, no weights.

A file may come from anywhere: every length is checked against the bytes that are left, so a
damaged or hostile one gives a `GgufError` and never a huge allocation.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MAGIC: Final = b"GGUF"
SUPPORTED_VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32
MAX_DIMENSIONS: Final = 4  # GGML_MAX_DIMS
MAX_ARRAY_DEPTH: Final = 4

# Type id → name, elements in a block, bytes of a block (ggml's type table).
GGML_TYPES: Final[dict[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}

# Metadata value types: id → struct format. 8 is a string, 9 an array.
_SCALARS: Final[dict[int, str]] = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING: Final = 8
_ARRAY: Final = 9

Value = int | float | bool | str | list["Value"]


class GgufError(ValueError):
    """The file is no GGUF file that can be read; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """One tensor of the file. `shape` is in file order: the contiguous dimension first."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int  # from the beginning of the file
    nbytes: int

    @property
    def type_name(self) -> str:
        return GGML_TYPES[self.type_id][0]

    @property
    def num_elements(self) -> int:
        return _product(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    version: int
    metadata: dict[str, Value]
    tensors: dict[str, TensorInfo]
    file_bytes: int


def read_header(path: Path) -> GgufHeader:
    """Read the header of the GGUF file at `path`.

    Raises GgufError for what is no readable GGUF file, OSError for what cannot be opened.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size < len(MAGIC):
            raise GgufError(f"{path} has {size} bytes: it is no GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _Parser(data, size).parse()
            except GgufError as error:
                raise GgufError(f"{path}: {error}") from None


class _Parser:
    def __init__(self, data: mmap.mmap, size: int) -> None:
        self._data = data
        self._size = size
        self._at = 0

    def parse(self) -> GgufHeader:
        if self._data[:4] != MAGIC:
            raise GgufError(
                f"it is no GGUF file: it begins with {self._data[:4]!r} in place of {MAGIC!r}"
            )
        self._at = 4
        version = int(self._scalar("I"))
        if version not in SUPPORTED_VERSIONS:
            swapped = struct.unpack(">I", struct.pack("<I", version))[0]
            hint = " (it is big-endian)" if swapped in SUPPORTED_VERSIONS else ""
            raise GgufError(f"GGUF version {version}{hint} is not supported; 2 and 3 are")
        num_tensors = self._count("Q", "tensors", at_least_bytes=24)
        num_values = self._count("Q", "metadata values", at_least_bytes=13)
        metadata: dict[str, Value] = {}
        for _ in range(num_values):
            key = self._string()
            if key in metadata:
                raise GgufError(f"metadata key {key!r} is there twice")
            metadata[key] = self._value(int(self._scalar("I")), depth=0)
        directory = [self._tensor() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise GgufError(f"general.alignment is {alignment!r}, which is no power of two")
        start = -(-self._at // alignment) * alignment
        return GgufHeader(
            version=version,
            metadata=metadata,
            tensors=self._placed(directory, start),
            file_bytes=self._size,
        )

    def _placed(
        self, directory: list[tuple[str, tuple[int, ...], int, int]], start: int
    ) -> dict[str, TensorInfo]:
        tensors: dict[str, TensorInfo] = {}
        for name, shape, type_id, relative in directory:
            if name in tensors:
                raise GgufError(f"tensor {name!r} is there twice")
            if type_id not in GGML_TYPES:
                raise GgufError(f"tensor {name!r} has the unknown type {type_id}")
            type_name, block_elements, block_bytes = GGML_TYPES[type_id]
            if shape[0] % block_elements:
                raise GgufError(
                    f"tensor {name!r} has rows of {shape[0]} elements, and {type_name} "
                    f"packs {block_elements} at a time"
                )
            nbytes = _product(shape) // block_elements * block_bytes
            if start + relative + nbytes > self._size:
                raise GgufError(
                    f"it is cut off: tensor {name!r} ends at byte {start + relative + nbytes}, "
                    f"the file at {self._size}"
                )
            tensors[name] = TensorInfo(
                name=name, shape=shape, type_id=type_id, offset=start + relative, nbytes=nbytes
            )
        return tensors

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        dimensions = int(self._scalar("I"))
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise GgufError(f"tensor {name!r} has {dimensions} dimensions")
        shape = tuple(int(self._scalar("Q")) for _ in range(dimensions))
        if min(shape) < 1:
            raise GgufError(f"tensor {name!r} has the shape {shape}")
        return name, shape, int(self._scalar("I")), int(self._scalar("Q"))

    def _value(self, type_id: int, depth: int) -> Value:
        if type_id == _STRING:
            return self._string()
        if type_id == _ARRAY:
            return self._array(depth + 1)
        if type_id not in _SCALARS:
            raise GgufError(f"unknown metadata type {type_id} at byte {self._at}")
        return self._scalar(_SCALARS[type_id])

    def _array(self, depth: int) -> list[Value]:
        if depth > MAX_ARRAY_DEPTH:
            raise GgufError("metadata arrays are nested too deeply")
        type_id = int(self._scalar("I"))
        if type_id in _SCALARS:
            code = _SCALARS[type_id]
            width = struct.calcsize("<" + code)
            count = self._count("Q", "array elements", at_least_bytes=width)
            return list(struct.unpack(f"<{count}{code}", self._take(count * width)))
        count = self._count("Q", "array elements", at_least_bytes=8)
        if type_id == _STRING:
            return self._strings(count)
        return [self._value(type_id, depth) for _ in range(count)]

    def _strings(self, count: int) -> list[Value]:
        # A vocabulary has a hundred thousand of these: locals and one unpacker make it quick.
        data, at, size = self._data, self._at, self._size
        unpack_from = struct.Struct("<Q").unpack_from
        texts: list[Value] = []
        for _ in range(count):
            if at + 8 > size:
                raise GgufError(f"it is cut off at byte {size}, in an array of strings")
            begin = at + 8
            at = begin + unpack_from(data, at)[0]
            if at > size:
                raise GgufError(f"it is cut off at byte {size}, in an array of strings")
            texts.append(data[begin:at].decode("utf-8", "replace"))
        self._at = at
        return texts

    def _string(self) -> str:
        length = self._count("Q", "bytes of text", at_least_bytes=1)
        return self._take(length).decode("utf-8", "replace")

    def _count(self, code: str, what: str, *, at_least_bytes: int) -> int:
        count = int(self._scalar(code))
        if count * at_least_bytes > self._size - self._at:
            raise GgufError(
                f"it announces {count} {what} at byte {self._at}, more than the file can hold"
            )
        return count

    def _scalar(self, code: str) -> int | float | bool:
        (value,) = struct.unpack("<" + code, self._take(struct.calcsize("<" + code)))
        assert isinstance(value, int | float)
        return value

    def _take(self, length: int) -> bytes:
        if self._at + length > self._size:
            raise GgufError(f"it is cut off at byte {self._size}, inside its header")
        self._at += length
        return self._data[self._at - length : self._at]


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for extent in shape:
        product *= extent
    return product
