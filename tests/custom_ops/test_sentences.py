"""The error messages that compiled code writes."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from support.parameters import COMPILED_OPS

if not COMPILED_OPS:
    pytest.skip("there are no compiled ops", allow_module_level=True)

from ort_gridsample.custom_ops.compiled_ops import (
    affine,
    attention,
    c_api,
    foreign,
    program_grids,
    registry,
    sentences,
)
from ort_gridsample.custom_ops.compiled_ops.structs import ARGUMENTS, ERRORS, MAX_ARGUMENTS, TEXT
from ort_gridsample.errors import where_node
from ort_gridsample.functions import error_templates
from ort_gridsample.kernels.structs import ctypes_type

Arguments: Any = ctypes_type(ARGUMENTS)
Errors: Any = ctypes_type(ERRORS)
Text: Any = ctypes_type(TEXT)
CREATED = 77

#: An argument of a sentence: a shape, an integer, a text, or a text in quotes.
Argument = tuple[int, ...] | int | str | bytes
#: All sentences, those of fused ops with the sentences that they share with other ops.
ALL_SENTENCES = {
    *affine.FUSED_SENTENCES,
    *attention.SENTENCES,
    *foreign.CODED.sentences,
    *program_grids.SENTENCES,
}


def set_text(struct: Any, content: bytes, kept: list[object]) -> None:
    """Fill in a TEXT; add the memory that it needs to ``kept``."""
    buffer = ctypes.create_string_buffer(content)
    kept.append(buffer)
    struct.data = ctypes.addressof(buffer)
    struct.length = len(content)


def set_argument(struct: Any, argument: Argument, kept: list[object]) -> None:
    """Fill in an ARGUMENT; add the memory that it needs to ``kept``."""
    if isinstance(argument, int):
        struct.kind = sentences._INTEGER
        struct.data = argument
    elif isinstance(argument, tuple):
        lengths = np.array(argument, np.int64)
        kept.append(lengths)
        struct.kind = sentences._SHAPE
        struct.data = lengths.ctypes.data
        struct.length = len(lengths)
    else:
        is_quoted = isinstance(argument, bytes)
        set_text(struct, argument if is_quoted else argument.encode(), kept)
        struct.kind = sentences._QUOTED_TEXT if is_quoted else sentences._TEXT


def message_of(
    name: bytes | None,
    sentence: bytes,
    arguments: Sequence[Argument] = (),
    prefix: bytes = b"GridSample node ",
    index: int = 1,
) -> str:
    """Return the message that compiled code writes for a node and a sentence.

    Args:
        name: the name of the node; None: the prefix has it.
        sentence: the encoded sentence.
        arguments: its arguments.
        prefix: the characters before the name.
        index: the index of the sentence. That of 0 is about memory, and is written without any.
    """
    messages = []

    def create_status(code: int, address: int) -> int:
        messages.append(ctypes.string_at(address))
        return CREATED

    callback = c_api.function_type(2)(create_status)
    api = (c_api.word * 1)(c_api.address_of_callback(callback))
    kept: list[object] = []
    encoded = (Text * 2)()
    for text in encoded:
        set_text(text, sentence, kept)
    prefix_text = Text()
    set_text(prefix_text, prefix, kept)
    errors = Errors(sentences=ctypes.addressof(encoded), prefix=prefix_text.data)
    if name is not None:
        set_text(errors.name, name, kept)
    passed = Arguments()
    for struct, argument in zip(passed.rows, arguments, strict=False):
        set_argument(struct, argument, kept)
    (address,) = registry.addresses([(sentences.create_error,)])
    function = c_api.function(address, 4)
    addresses = (ctypes.addressof(api), ctypes.addressof(errors), index, ctypes.addressof(passed))
    assert function(*addresses) == CREATED
    (message,) = messages
    return message.decode()


NO_MEMORY = sentences.encode(sentences.NO_MEMORY_SENTENCE, "nbytes")
WITHOUT_MEMORY = sentences.NO_MEMORY_INDEX

NAMES = ["n", "(Y)", "(", "()", "名", "a (b)", "it's", '"it\'s"', "a\\b", "\t\n\r\x01\x7f"]


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_message_about_a_node_names_it_as_python_does(name: str, index: int) -> None:
    message = message_of(name.encode(), NO_MEMORY, (7,), index=index)
    where = where_node("GridSample", name)
    assert message == f"{where}: memory is exhausted, expected 7 free bytes for scratch memory"


@pytest.mark.parametrize("name", NAMES)
def test_message_of_a_quoted_text_quotes_it_as_python_does(name: str) -> None:
    sentence = sentences.encode(error_templates.MODE_UNKNOWN, "value", listed="'linear'")
    message = message_of(b"n", sentence, (name.encode(),))
    assert message == f"GridSample node 'n': mode is {name!r}, expected 'linear'"


def test_message_of_a_node_whose_prefix_has_its_name_has_no_other_name() -> None:
    message = message_of(None, NO_MEMORY, (5,), prefix=b"GridSample node 'n'")
    assert message == "GridSample node 'n': memory is exhausted, expected 5 free bytes for " + (
        "scratch memory"
    )


@pytest.mark.parametrize("number", [0, 7, -7, 10, 99, 20865024, (1 << 63) - 1, -(1 << 63)])
def test_message_of_a_number_has_its_digits(number: int) -> None:
    message = message_of(b"n", NO_MEMORY, (number,))
    assert f"expected {number} free bytes" in message


@pytest.mark.parametrize("shape", [(), (0,), (1, 2), (1 << 62, -1, 3)])
def test_message_of_a_shape_has_its_lengths(shape: tuple[int, ...]) -> None:
    sentence = sentences.encode(error_templates.X_SHAPE_INVALID, "X")
    message = message_of(b"n", sentence, (shape,))
    assert f"X is of shape ({', '.join(map(str, shape))}), expected" in message


@pytest.mark.parametrize("start", range(4))
def test_message_without_memory_of_a_long_name_has_whole_characters_of_it(start: int) -> None:
    name = "a" * start + "名" * 10_000
    message = message_of(name.encode(), NO_MEMORY, (5,), index=WITHOUT_MEMORY)
    quoted, rest = message.removeprefix("GridSample node '").split("'")
    assert name.startswith(quoted)
    assert 500 < len(quoted.encode()) <= 512
    assert rest == ": memory is exhausted, expected 5 free bytes for scratch memory"


def test_message_of_a_long_name_and_a_long_shape_is_complete() -> None:
    shape = tuple(range(-100, 100))
    sentence = sentences.encode(error_templates.X_SHAPE_INVALID, "X")
    message = message_of(b"'" * 9999, sentence, (shape,))
    assert message.startswith(where_node("GridSample", "'" * 9999))
    assert f"X is of shape {shape}, expected shape (N, C, D1, …, Dr) with" in message


def test_message_without_memory_of_a_long_shape_ends_in_its_buffer() -> None:
    sentence = sentences.encode(error_templates.X_SHAPE_INVALID, "X")
    shape = tuple(range(10**6, 10**6 + 1000))
    message = message_of(b"n", sentence, (shape,), index=WITHOUT_MEMORY)
    assert len(message) == 2047
    assert message.startswith("GridSample node 'n': X is of shape (1000000, 1000001, ")


@pytest.mark.parametrize("sentence", sorted(ALL_SENTENCES))
@pytest.mark.parametrize("index", [0, 1])
def test_message_of_every_sentence_has_its_arguments(sentence: bytes, index: int) -> None:
    arguments: list[Argument] = [(1, -2), 3, "a text", -(1 << 40), (), "b"]
    texts = ["(1, -2)", "3", "a text", str(-(1 << 40)), "()", "b"]
    assert len(arguments) == MAX_ARGUMENTS
    message = message_of(b"n" * 512, sentence, arguments, prefix=b"p" * 512, index=index)
    expected = sentence.decode().translate(dict(enumerate(texts, start=1)))
    assert message == f"{'p' * 512}'{'n' * 512}'{expected}"
