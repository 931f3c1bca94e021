"""Facts about objects of onnxruntime's extension module, which take no attributes."""

from __future__ import annotations

from typing import Any, Generic, TypeVar
from weakref import ref

Fact = TypeVar("Fact")


class IdentityMap(Generic[Fact]):
    """Facts about objects, by their identity, while the objects live.

    ``SessionOptions`` refuse attributes, and their class cannot be replaced by a subclass: Python
    refuses it because of another deallocator (tried with onnxruntime 1.17 to 1.32). Configuration
    entries can be added, but copies of options have them too, and lack the ops.

    This is not a WeakKeyDictionary: its callbacks run when an object is freed, and an exception
    that a signal handler raises in a callback is lost.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[ref[Any], Fact]] = {}

    def __setitem__(self, instance: object, fact: Fact) -> None:
        for key, (reference, _) in self._entries.copy().items():
            if reference() is None:
                self._entries.pop(key, None)
        self._entries[id(instance)] = ref(instance), fact

    def get(self, instance: object) -> Fact | None:
        """Return the fact about ``instance``; None if there is none."""
        reference, fact = self._entries.get(id(instance), (None, None))
        # An object that was freed may have had the same identity.
        return fact if reference is not None and reference() is instance else None
