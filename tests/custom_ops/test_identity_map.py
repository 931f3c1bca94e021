"""Facts about objects that take no attributes."""

import gc
import weakref

import onnxruntime
import pytest

from ort_gridsample.custom_ops.identity_map import IdentityMap


def test_options_take_no_attribute() -> None:
    """If they do, an attribute is simpler than an IdentityMap."""
    with pytest.raises(AttributeError):
        onnxruntime.SessionOptions().fact = 1


def test_options_of_equal_content_have_their_own_facts() -> None:
    facts = IdentityMap[str]()
    first, second, third = (onnxruntime.SessionOptions() for _ in range(3))
    facts[first] = "first"
    facts[second] = "second"
    assert [facts.get(options) for options in (first, second, third)] == ["first", "second", None]


def test_options_at_the_address_of_freed_options_have_no_fact() -> None:
    facts = IdentityMap[str]()
    freed = onnxruntime.SessionOptions()
    facts[freed] = "freed"
    entry = facts._entries.popitem()[1]
    del freed
    gc.collect()
    options = onnxruntime.SessionOptions()
    facts._entries[id(options)] = entry
    assert facts.get(options) is None


def test_facts_about_freed_options_are_dropped() -> None:
    facts = IdentityMap[list[int]]()
    options = onnxruntime.SessionOptions()

    class Fact(list[int]):
        """A list to which there can be references."""

    fact = Fact()
    reference = weakref.ref(fact)
    facts[options] = fact
    del options, fact
    gc.collect()
    facts[onnxruntime.SessionOptions()] = []
    assert reference() is None
