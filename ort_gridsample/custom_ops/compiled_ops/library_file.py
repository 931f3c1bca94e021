"""The part of :mod:`ort_gridsample.kernels.library_file` that the compiled ops use."""

from ...kernels.library_file import (
    FORMAT,
    PACKAGED,
    SUFFIXES,
    VARIABLE,
    Trailer,
    append_trailer,
    configured_library,
    read_trailer,
    validate,
)

__all__ = [
    "FORMAT",
    "PACKAGED",
    "SUFFIXES",
    "VARIABLE",
    "Trailer",
    "append_trailer",
    "configured_library",
    "read_trailer",
    "validate",
]
