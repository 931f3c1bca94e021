"""Error messages that need no memory."""

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from support.parameters import COMPILED_OPS

if not COMPILED_OPS:
    pytest.skip("there are no compiled ops", allow_module_level=True)

from ort_gridsample.custom_ops.compiled_ops import c_api, registry, sentences
from ort_gridsample.custom_ops.compiled_ops.sampling import SENTENCES
from ort_gridsample.custom_ops.compiled_ops.structs import ERRORS, TEXT
from ort_gridsample.functions import validation
from ort_gridsample.kernels.structs import ctypes_type

Errors: Any = ctypes_type(ERRORS)
Text: Any = ctypes_type(TEXT)
CREATED = 77


def set_text(struct: Any, content: bytes, kept: list[object]) -> None:
    """Fill in a TEXT; add the memory that it needs to ``kept``."""
    buffer = ctypes.create_string_buffer(content)
    kept.append(buffer)
    struct.data = ctypes.addressof(buffer)
    struct.length = len(content)


def message_of(
    name: bytes | None,
    sentence: bytes,
    number: int = 0,
    prefix: bytes = b"GridSample node ",
    function: Callable[..., int] = sentences.create_brief_error,
) -> str:
    """Return the message that a compiled function writes for a node and a sentence."""
    messages = []

    def create_status(code: int, address: int) -> int:
        messages.append(ctypes.string_at(address))
        return CREATED

    callback = c_api.function_type(2)(create_status)
    api = (c_api.word * 1)(c_api.address_of_callback(callback))
    kept: list[object] = []
    encoded = Text()
    set_text(encoded, sentence, kept)
    prefix_text = Text()
    set_text(prefix_text, prefix, kept)
    errors = Errors(sentences=ctypes.addressof(encoded), prefix=prefix_text.data)
    set_text(errors.value, b"the value", kept)
    if name is not None:
        set_text(errors.name, name, kept)
    (address,) = registry.addresses([(function,)])
    arguments = [ctypes.addressof(api), ctypes.addressof(errors), 0]
    if function is sentences.create_error:
        arguments += [0, 0, 0, 0]
    arguments.append(number)
    assert c_api.function(address, len(arguments))(*arguments) == CREATED
    (message,) = messages
    return message.decode()


NO_MEMORY = sentences.encode(sentences.NO_MEMORY_SENTENCE)


@pytest.mark.parametrize("name", [b"n", b"(Y)", b"(", b"()", "名".encode(), b"a (b)"])
@pytest.mark.parametrize("number", [0, 7, 10, 20865024, (1 << 63) - 1])
def test_brief_error_about_memory_is_the_full_one(name: bytes, number: int) -> None:
    full = message_of(name, NO_MEMORY, number, function=sentences.create_error)
    assert message_of(name, NO_MEMORY, number) == full
    assert f"expected {number} free bytes for scratch memory" in full


def test_brief_error_of_a_node_whose_prefix_has_its_name_has_no_other_name() -> None:
    message = message_of(None, NO_MEMORY, 5, prefix=b"GridSample node 'n'")
    assert message == "GridSample node 'n': memory is exhausted, expected 5 free bytes for " + (
        "scratch memory"
    )


@pytest.mark.parametrize("name", [b"a\nb", b"a\x7fb", b"a\x01b"])
def test_brief_error_of_a_name_with_a_control_character_has_a_question_mark(name: bytes) -> None:
    assert message_of(name, NO_MEMORY).startswith("GridSample node 'a?b': ")


@pytest.mark.parametrize("start", range(4))
def test_brief_error_of_a_long_name_has_whole_characters_of_it(start: int) -> None:
    name = "a" * start + "名" * 10_000
    message = message_of(name.encode(), NO_MEMORY, 5)
    quoted, rest = message.removeprefix("GridSample node '").split("'")
    assert name.startswith(quoted)
    assert 500 < len(quoted.encode()) <= 512
    assert rest == ": memory is exhausted, expected 5 free bytes for scratch memory"


def test_brief_error_of_a_shape_has_question_marks() -> None:
    message = message_of(b"n", sentences.encode(validation.GRID_BATCH_MISMATCH))
    assert message == (
        "GridSample node 'n': grid is of shape ?, expected N = ? in axis 0, as X is of shape ?"
    )


@pytest.mark.parametrize("sentence", SENTENCES)
def test_brief_error_of_every_sentence_is_complete(sentence: bytes) -> None:
    number = -(1 << 40)
    replacements = {sentences.NUMBER: str(number), sentences.VALUE: "the value"}
    message = message_of(b"n" * 1000, sentence, number, prefix=b"p" * 1000)
    expected = sentence.decode().translate(
        dict.fromkeys(range(1, sentences.ALL_BUT_LAST + 1), "?") | replacements
    )
    assert message == f"{'p' * 512}'{'n' * 512}'{expected}"
