"""Images of records, and the ops that this process and a library make from them."""

import ctypes
import struct
from typing import Any

import numpy as np
import onnxruntime
import pytest

from ort_gridsample.custom_ops.compiled_ops import catalog, op_image, registry
from ort_gridsample.custom_ops.compiled_ops.record_image import RecordImage
from ort_gridsample.custom_ops.compiled_ops.structs import OP, TEXT
from ort_gridsample.kernels.structs import ctypes_type, record
from support.parameters import COMPILED_OPS
from support.paths import LIBRARY

INNER = record("first second")
OUTER = record("number", ("row", (np.int64, 3)), ("inner", INNER), "address")


def words_of(image: RecordImage, address: int, *functions: int) -> list[int]:
    """Return the numbers of an image in the memory at ``address``."""
    data = image.with_addresses(address, functions)
    return list(struct.unpack(f"<{len(data) // 8}q", data))


def test_fields_of_a_record_are_written_where_the_dtype_has_them() -> None:
    image = RecordImage()
    image.add_records(OUTER, {"number": -1, "row": [2, 3, 4], "inner": {"second": True}})
    assert words_of(image, 1000) == [-1, 2, 3, 4, 0, 1, 0]


def test_offsets_become_addresses_and_functions_theirs() -> None:
    image = RecordImage()
    text = image.add_text(b"seven b")
    offset = image.add_records(INNER, {"first": text, "second": (len,)}, {"first": 5})
    image.add_pointers([offset, 0])
    assert words_of(image, 1000, 77)[1:] == [1000, 77, 5, 0, 1008, 0]
    assert words_of(image, 2000, 78)[1:] == [2000, 78, 5, 0, 2008, 0]


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_number_of_another_type_is_converted_to_that_of_its_field(value: float, dtype: str) -> None:
    image = RecordImage()
    image.add_records(record(("number", np.dtype(dtype))), {"number": value})
    size = np.dtype(dtype).itemsize
    assert np.frombuffer(image.data[:size], dtype).tolist() == [2.0]


@pytest.mark.parametrize("row", [[1, 2], [1, 2, 3, 4], 5])
def test_row_of_another_length_than_its_field_is_refused(row: object) -> None:
    image = RecordImage()
    with pytest.raises(ValueError, match=r"row is .*, expected"):
        image.add_records(OUTER, {"row": row})


def test_equal_texts_of_an_image_are_one() -> None:
    image = RecordImage()
    texts = image.add_texts([b"a", b"b", b"a"])
    assert image.add_text(b"b") != image.add_text(b"a")
    assert image.add_texts((b"a", b"b", b"a")) == texts
    assert image.add_texts([b"a"]) != texts
    rows = [image.relocations[texts + index * TEXT.itemsize] for index in range(3)]
    assert rows[0] == rows[2] != rows[1]


#: The fields of an OP whose values are addresses.
ADDRESSES = {"name", "sentences", "description", "states", "op_context"}
#: The fields of an OP that are functions in a library, and callbacks in this process.
FUNCTIONS = {name for name in OP.names or () if name[0].isupper()}


def text_at(address: int) -> bytes:
    return ctypes.string_at(address)


def values_of(struct_: Any, n_sentences: int) -> dict[str, object]:
    """Return the schema and the texts of an OP."""
    values: dict[str, object] = {
        name: getattr(struct_, name) for name in OP.names or () if name not in ADDRESSES | FUNCTIONS
    }
    values["types"] = list(struct_.types)
    for name in ("name", "description"):
        values[name] = text_at(getattr(struct_, name))
    texts = (ctypes_type(TEXT) * n_sentences).from_address(struct_.sentences)
    values["sentences"] = [ctypes.string_at(text.data, text.length) for text in texts]
    return values


@pytest.mark.skipif(bool(LIBRARY) or not COMPILED_OPS, reason="no op is compiled in this process")
@pytest.mark.parametrize("operator", ["GridSample", "AffineGrid", "DeformableAttention"])
def test_op_of_this_process_has_the_fields_of_a_librarys(operator: str) -> None:
    """Both are images. Only functions and states, which are compiled on demand, differ."""
    registry.compiled_ops().register(onnxruntime.SessionOptions())
    op = next(op for op in catalog.OPS if op.name == operator)
    types = op.types[0]
    struct_ = registry._OpStruct.from_address(registry.compiled_ops().address(op, types))
    registry._complete(struct_, op, types)
    library = RecordImage()
    fields = {
        **op_image.schema_fields(library, op, types),
        **op_image.kernel_fields(library, op, types, [0]),
    }
    offset = library.add_records(OP, fields)
    address = registry.load_image(library) + offset
    n_sentences = len(op.load().sentences)
    expected = values_of(registry._OpStruct.from_address(address), n_sentences)
    assert values_of(struct_, n_sentences) == expected
    assert struct_.KernelComputeV2
    assert struct_.KernelDestroy
    assert struct_.CreateKernelV2 != registry._OpStruct.from_address(address).CreateKernelV2
