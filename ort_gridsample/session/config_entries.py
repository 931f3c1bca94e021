"""Read all configuration entries of ``onnxruntime.SessionOptions``.

In Python, options return the value of a key, and do not list the keys. The C API lists them, and a
library of custom ops gets the C struct of the options when it is registered on them.
"""

from __future__ import annotations

import ctypes
import threading

import onnxruntime

from ..custom_ops.compiled_ops import c_api, trampoline
from ..custom_ops.signals import with_signals_deferred
from ..system.process import after_fork, created_once, keep_forever
from .options import copy_options


class _EntryReader:
    """A library of custom ops without ops, which reads the entries of the options that get it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, str] = {}
        n_arguments = trampoline.ENTRY_POINTS[trampoline.ENTRY_POINT]
        self._callback = c_api.callback(n_arguments, self._read, lambda *_: 0)
        keep_forever(self._callback)
        address = c_api.address_of_callback(self._callback)
        _, self._path = trampoline.load({trampoline.ENTRY_POINT: address})
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may have held the lock

    def entries_of(self, options: onnxruntime.SessionOptions) -> dict[str, str]:
        """Return the entries of options, which get the library."""
        with self._lock:
            self._entries = {}
            options.register_custom_ops_library(self._path)
            return self._entries

    def _read(self, options: int, base: int) -> int:
        """RegisterCustomOps."""
        api = c_api.get_api(base, c_api.FUNCTIONS["GetSessionOptionsConfigEntries"].since)
        if not api:
            return 0
        pairs = c_api.get(api, "GetSessionOptionsConfigEntries", options)
        keys, values, count = c_api.word(), c_api.word(), c_api.word()
        results = [ctypes.addressof(result) for result in (keys, values, count)]
        c_api.call(api, "GetKeyValuePairs", pairs, *results)
        if count.value:
            texts = [
                (ctypes.c_char_p * count.value).from_address(table.value)
                for table in (keys, values)
            ]
            for key, value in zip(*texts, strict=True):
                self._entries[key.decode()] = value.decode()
        c_api.call(api, "ReleaseKeyValuePairs", pairs)
        return 0


@created_once
def _entry_reader() -> _EntryReader:
    return _EntryReader()


def config_entries(options: onnxruntime.SessionOptions) -> dict[str, str]:
    """Return the configuration entries of options.

    None before onnxruntime 1.23, or if this system does not load the library that reads them.
    """
    try:
        reader = _entry_reader()
    except trampoline.NoTrampolineError:
        return {}
    return with_signals_deferred(reader.entries_of, copy_options(options))
