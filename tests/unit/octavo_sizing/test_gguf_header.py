import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES

from octavo_sizing.gguf_header import GGML_TYPES, GgufError, GgufHeader, read_header


def write(path: Path) -> Path:
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_uint32("llama.block_count", 7)
    writer.add_float32("llama.rope.freq_base", 5e5)
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    writer.add_array("tokenizer.ggml.tokens", ["a", "é", "", "日本"])
    writer.add_array("tokenizer.ggml.token_type", [1, 3, 1, 1])
    writer.add_array("some.scores", [0.5, -1.0])
    writer.add_tensor("w", np.arange(24, dtype=np.float32).reshape(3, 8))
    writer.add_tensor("h", np.arange(5, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "model.gguf")


def test_metadata_and_tensors_are_read(file: Path) -> None:
    header = read_header(file)
    assert header.version == 3
    assert header.metadata["general.architecture"] == "llama"
    assert header.metadata["llama.block_count"] == 7
    assert header.metadata["llama.rope.freq_base"] == 5e5
    assert header.metadata["tokenizer.ggml.add_bos_token"] is True
    assert header.metadata["tokenizer.ggml.tokens"] == ["a", "é", "", "日本"]
    assert header.metadata["tokenizer.ggml.token_type"] == [1, 3, 1, 1]
    assert header.metadata["some.scores"] == [0.5, -1.0]
    weight, half = header.tensors["w"], header.tensors["h"]
    assert (weight.shape, weight.type_name, weight.nbytes) == ((8, 3), "F32", 96)
    assert (half.shape, half.type_name, half.num_elements) == ((5,), "F16", 5)
    data = file.read_bytes()
    stored = np.frombuffer(data[weight.offset : weight.offset + weight.nbytes], np.float32)
    assert stored.tolist() == list(range(24))


def test_type_table_is_that_of_the_gguf_package() -> None:
    theirs = {int(kind): (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}
    assert {type_id: theirs.get(type_id) for type_id in GGML_TYPES} == GGML_TYPES


def test_a_file_cut_anywhere_is_refused(file: Path, tmp_path: Path) -> None:
    data = file.read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in range(len(data) - 32):
        cut.write_bytes(data[:length])
        with pytest.raises(GgufError):
            read_header(cut)


def test_a_damaged_byte_gives_an_error_or_a_header_but_nothing_else(
    file: Path, tmp_path: Path
) -> None:
    data = bytearray(file.read_bytes())
    damaged = tmp_path / "damaged.gguf"
    for position in range(0, len(data) - 160):
        for value in (0, 9, 255):
            changed = data.copy()
            changed[position] = value
            damaged.write_bytes(changed)
            try:
                assert isinstance(read_header(damaged), GgufHeader)
            except GgufError:
                continue


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "0 bytes"),
        (b"PK\x03\x04" + bytes(64), "begins with"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "announces 1152921504606846976 tensors"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63) + bytes(64), "bytes of text"),
    ],
)
def test_errors_say_what_is_wrong(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "wrong.gguf"
    path.write_bytes(data)
    with pytest.raises(GgufError, match=says):
        read_header(path)


def test_a_missing_file_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_header(tmp_path / "none.gguf")
