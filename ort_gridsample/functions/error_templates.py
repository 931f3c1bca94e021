"""The errors about arguments, as sentences with fields.

Functions and detection raise them, and compiled ops write them. So the text of an error is the same
wherever an operator runs. One number differs: compiled ops write at most 2**61 pixels of levels.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import GridSampleError


@dataclass(frozen=True)
class ErrorTemplate:
    """The parts of an error about one argument, with fields in braces for :meth:`str.format`."""

    argument: str
    found: str
    expected: str
    verb: str = "is"

    def error(self, where: str, **fields: object) -> GridSampleError:
        """Return the error at ``where``, with the values of the fields."""
        argument = self.argument.format(**fields)
        found = self.found.format(**fields)
        expected = self.expected.format(**fields)
        return GridSampleError(where, argument, found, expected, self.verb)


# --- Any argument ---

NOT_AN_ARRAY = ErrorTemplate("{argument}", "not an array ({reason})", "an array")
TYPE_NOT_ALLOWED = ErrorTemplate("{argument}", "of type {type}", "one of {listed}")
NOT_A_STRING = ErrorTemplate(
    "{argument}",
    "an array of objects with an element of type {type}",
    "an array of strings",
)
ARRAY_TOO_LARGE = ErrorTemplate(
    "{argument}",
    "of shape {shape} and {nbytes} bytes",
    "fewer bytes than an address can reach",
)
ARRAY_EXCEEDS_MEMORY = ErrorTemplate(
    "{argument}",
    "of shape {shape} and {nbytes} bytes",
    "at most {available} bytes, the memory that is left",
)
NUM_THREADS_INVALID = ErrorTemplate("num_threads", "{value}", "{listed}")

# --- GridSample ---

MODE_UNKNOWN = ErrorTemplate("mode", "{value}", "{listed}")
MODE_UNDEFINED = ErrorTemplate(
    "mode", "{value}", "{listed}, the only mode that is defined for {type} X"
)
PADDING_MODE_UNKNOWN = ErrorTemplate("padding_mode", "{value}", "{listed}")
X_SHAPE_INVALID = ErrorTemplate(
    "X",
    "of shape {X}",
    "shape (N, C, D1, …, Dr) with at least one spatial axis",
)
X_HAS_NO_PIXEL = ErrorTemplate(
    "X",
    "of shape {X}",
    "no spatial axis of length 0, as padding_mode {padding_mode!r} needs a pixel",
)
GRID_SHAPE_INVALID = ErrorTemplate("grid", "of shape {grid}", "shape (N, D1_out, …, Dr_out, r)")
GRID_SHAPE_MISMATCH = ErrorTemplate(
    "grid",
    "of shape {grid}",
    "shape (N, {outputs}, {r}), as X of shape {X} has {r} spatial {axis_word}",
)
GRID_BATCH_MISMATCH = ErrorTemplate(
    "grid", "of shape {grid}", "N = {N} in axis 0, as X is of shape {X}"
)

# --- AffineGrid ---

THETA_SHAPE_INVALID = ErrorTemplate("theta", "of shape {theta}", "shape (N, 2, 3) or (N, 3, 4)")
SIZE_NOT_1D = ErrorTemplate("size", "of type {type} and shape {size}", "a row of integers")
SIZE_SHAPE_INVALID = ErrorTemplate("size", "of shape {size}", "4 or 5 numbers")
SIZE_LENGTH_MISMATCH = ErrorTemplate("size", "{size}", "{axes}, as theta is of shape {theta}")
SIZE_NEGATIVE = ErrorTemplate(
    "size",
    "{size}, where {axis} = {length}",
    "{axes} with lengths of at least 0, as theta is of shape {theta}",
)
SIZE_BATCH_MISMATCH = ErrorTemplate(
    "size", "{size}", "N = {N} as its first element, as theta is of shape {theta}"
)
# Of a size whose theta has an unknown shape.
SIZE_ALONE_LENGTH_INVALID = ErrorTemplate("size", "{size}", "{axes}")
SIZE_ALONE_NEGATIVE = ErrorTemplate(
    "size", "{size}, where {axis} = {length}", "{axes} with lengths of at least 0"
)

# --- Deformable attention ---

OUTPUT_LAYOUT_UNKNOWN = ErrorTemplate("output_layout", "{value}", "{listed}")
VALUE_SHAPE_INVALID = ErrorTemplate("value", "of shape {value_shape}", "shape (B, S, H, D)")
# ``levels`` is the input of the op; its lengths are ``spatial_shapes`` of the public function.
SPATIAL_SHAPES_SHAPE_INVALID = ErrorTemplate(
    "spatial_shapes",
    "of shape {spatial_shapes}",
    "shape (L, r), with at least one spatial axis",
)
SPATIAL_SHAPES_TYPE_INVALID = ErrorTemplate("spatial_shapes", "of type {type}", "integers")
SPATIAL_SHAPES_TOO_LONG = ErrorTemplate(
    "spatial_shapes",
    "a length of {length}",
    "lengths below 2**63",
    verb="contains",
)
LENGTHS_NEGATIVE = ErrorTemplate(
    "{argument}",
    "a negative length",
    "lengths of at least 0",
    verb="contains",
)
LEVELS_SHAPE_INVALID = ErrorTemplate(
    "levels",
    "of shape {levels}",
    "shape (L, 1 + r), with at least one spatial axis",
)
LEVELS_NEGATIVE = ErrorTemplate(
    "levels",
    "a negative length or number of points",
    "numbers of at least 0",
    verb="contains",
)
LEVELS_PIXELS_MISMATCH = ErrorTemplate(
    "{argument}",
    "of {pixels} pixels in all levels together",
    "{n_pixels} pixels, the length S of value, which is of shape (B, S, H, D) = {value_shape}",
)
LOCATIONS_SHAPE_MISMATCH = ErrorTemplate(
    "sampling_locations",
    "of shape {sampling_locations}",
    "shape (B, Q, H, L, P, r), as value (B, S, H, D) is of shape {value_shape} and L is {n_levels}",
)
WEIGHTS_SHAPE_MISMATCH = ErrorTemplate(
    "attention_weights",
    "of shape {attention_weights}",
    "shape {weights_shape}, as sampling_locations is of shape {sampling_locations}",
)
LEVEL_STARTS_MISMATCH = ErrorTemplate(
    "level_start_index",
    "inconsistent with spatial_shapes",
    "the first pixel of each level, which begins where the previous level ends",
)
