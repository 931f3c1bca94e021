"""The records of the compiled ops, beside those of the core: each field has its name and type here."""

from __future__ import annotations

import numpy as np

from ...core.structs import KERNEL, LAUNCH, record
from ...model.programs import MOST_SOURCES, MOST_STEPS

#: X, the grid or what a program's scalars or a size are, and the sources.
MOST_INPUTS = 2 + MOST_SOURCES

#: An input: the addresses of its elements and of its lengths, and its number of axes (-1: the input is left out).
INPUT = record("data shape axes")

#: What a call of an op by ONNX Runtime needs: the launch, the table of functions and the context of the call, the first
#: block of its memory, its inputs, the grid that they say (its data where it is one), and a program's components.
REQUEST = record(
    ("launch", LAUNCH), "api context blocks", ("inputs", (INPUT, MOST_INPUTS)), ("grid", INPUT), "components"
)

#: What begins a block of memory that lives as long as a request: the address of the next.
BLOCK = record("next rest")

#: A sentence, as bytes: where it begins, and its length without the 0 at its end.
TEXT = record("at length")

#: The op GridSample: the core's descriptor; the function that measures the grid (0: the second input is the grid), and
#: that function's record; the number of inputs; and the op's sentences.
GRID_SAMPLE = record(("kernel", KERNEL), "measure source n_inputs sentences")

#: The op AffineGrid: the functions, as in a KERNEL, and what fills the grid; the attribute; theta's size in bytes,
#: processors, and its sentences.
AFFINE_GRID = record("api shape_of fill align_corners theta_size cpus sentences")

#: The op DeformableAttention: the functions, as in a KERNEL; the attribute; value's size in bytes, processors, and its
#: sentences.
DEFORMABLE_ATTENTION = record("api shape_of proceed worker align_corners value_size cpus sentences")

#: Theta as the source of a grid.
THETA = record("align_corners sentences")

#: How AffineGrid's workers fill the grid: addresses of theta, the grid and its lengths; in how many parts; the next
#: item; and where each worker has positions along columns and, waiting to be written, a row's coordinates.
FILL = record(
    "theta grid lengths align_corners n r rows columns chunks step parts items next workers positions waiting"
)

#: Programs as the source of a grid: the numbers of scalars, coordinates and programs, the bytes of an element, where
#: the programs are, and their sentences.
PROGRAMS = record("n_scalars r count item programs sentences")
#: One of :func:`ort_gridsample.model.programs.flattened`.
PROGRAM = record("source axis index length n_steps", ("steps", (np.int64, MOST_STEPS)))

#: Where a request finds a program's component: the elements, their number, and the first of the component; how many lie
#: together that differ in no axis before the coordinates' own, and in how many rows to its next; whether all batches
#: share it.
COMPONENT = record("data size first inner rows is_shared")
