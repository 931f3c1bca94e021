"""The records of the compiled ops, beside those of the core: each field has its name and type here."""

from __future__ import annotations

import numpy as np

from ...detection.programs import MAX_SOURCES, MAX_STEPS
from ...kernels.structs import KERNEL, LAUNCH, record
from .c_api import FIELDS

#: X, the grid or what a program's scalars or a size are, and the sources.
MOST_INPUTS = 2 + MAX_SOURCES

#: The inputs of an op that may differ in type, at most.
MOST_TYPES = 4

#: An input: the addresses of its elements and of its lengths, and its number of axes (-1: the input is left out).
INPUT = record("data shape axes")

#: What a call of an op by ONNX Runtime needs: the launch, the table of functions and the context of the call, the first
#: block of its memory and whether there was none for another, a program's components, its inputs, and the grid that
#: they say (its data where it is one).
REQUEST = record(
    ("launch", LAUNCH), "api context blocks lacks_memory components", ("inputs", (INPUT, MOST_INPUTS)), ("grid", INPUT)
)

#: The shape of the status output of an op that stands in for a Python op.
STATUS_SHAPE = record("rows columns")

#: What begins a block of memory that lives as long as a request: the address of the next.
BLOCK = record("next rest")

#: A sentence, as bytes: where it begins, and its length without the 0 at its end.
TEXT = record("at length")

#: What the ops have in common: ONNX Runtime's table of functions, and of these the one that not every release has (0:
#: none); the processors that this process may run on; and whether a state that is not there is made when it is asked
#: for.
LIBRARY = record("api shape_of cpus makes")

#: The ops in a library as they are compiled for one kind of processor: the level that it needs; where they lie, their
#: number, and what they have in common.
VARIANT = record("level ops count library")

#: What a library begins with: whether a thread is registering its ops; their domain, once there is one, and the table
#: of functions by which it was made; the variants, as a row of addresses; and two sentences.
ENTRY = record("lock domain api count variants no_variant too_old")

#: An op for ONNX Runtime, which reads the first fields: its name; the numbers of inputs and outputs, the input that is
#: several (-1: none) and
#: their types; what all ops have in common; the row of its states, as addresses (0: not there); its sentences; and what
#: it takes, in words.
OP = record(
    FIELDS, "name n_inputs n_outputs variadic", ("types", (np.int64, MOST_TYPES)), "library states sentences described"
)

#: A node whose kernel is being made: ONNX Runtime's table of functions and its handle of the node, its memory as in a
#: REQUEST, and what CreateKernelV2 answers (0: there is a kernel).
NODE = record("api info blocks lacks_memory status")

#: How a kernel's errors are written: the op's sentences, the name of the node, and a value that a sentence quotes.
ERRORS = record("sentences", ("where", TEXT), ("value", TEXT))

#: What an op's state begins with: the core's descriptor, ONNX Runtime's functions as in a LIBRARY, the node's ERRORS.
_STATE = ("kernel", KERNEL), "api shape_of sentences"

#: Programs as the source of a grid: the numbers of scalars, coordinates and programs, where the programs are, and how
#: many values they read, with their names.
PROGRAMS = record("n_scalars r count programs n_sources", ("names", (TEXT, MAX_SOURCES)))
#: A row of :func:`ort_gridsample.detection.programs.to_rows`.
PROGRAM = record("source axis index length n_steps", ("steps", (np.int64, MAX_STEPS)))

#: The op GridSample: what measures the grid (0: the second input is the grid), and the number of inputs; and what that
#: is made of: an AffineGrid's attribute and its ERRORS, or programs.
GRID_SAMPLE = record(*_STATE, "measure n_inputs affine_align_corners affine_sentences", ("programs", PROGRAMS))

#: An op that has nothing of its own; its descriptor has its worker, and the size of an element of its first input.
PLAIN = record(*_STATE)

#: How AffineGrid's workers fill the grid: addresses of theta, the grid and its lengths; in how many parts; the next
#: item; and where each worker has positions along columns and, waiting to be written, a row's coordinates.
FILL = record(
    "theta grid lengths align_corners n r rows columns chunks step parts items next workers positions waiting"
)

#: Where a request finds a program's component: the elements of its value, and the first of the component; how many
#: positions in a row lie one step apart, and how many axes of a coordinate list such rows; and where the axes' strides
#: are, in elements (0: it is broadcast).
COMPONENT = record("data first step run axes strides")

#: The shape of a coordinate, as a sentence says it: the axis of its component that lists coordinates (-1: none), the
#: length of that, and r.
COORDINATES = record("axis length r")
