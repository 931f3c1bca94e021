"""Time the forms of a node on accelerators, and the node on the CPU.

A run on an accelerator begins and ends with arrays in the CPU's memory, and so it contains copies
that the node does not need between other nodes of the accelerator. The node needs them if it runs
on the CPU between these. Therefore a run of nothing but copies is timed as well: it copies the
inputs and the output of the node in both directions, which is twice what a run of the node copies.
So the accelerator is faster if its run takes less than the CPU's and the copies together.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from math import inf

from onnx import helper

from ..graph.element_types import elem_type
from ..inference.one_node import fed_type
from ..system.cpus import available_cpus
from .installed_runtime import quiet_options
from .probe_cases import ProbeCase
from .provider_process import ProviderProcess
from .provider_script import seconds_of_run

#: A form must take this part of the time of one before it, or it is not worth its nodes.
MAX_TIME_RATIO = 0.9


def seconds_on_accelerators(process: ProviderProcess, case: ProbeCase, model: bytes) -> float:
    """Return the seconds of a run of a form of a case; infinite if the run fails.

    Args:
        process: runs models on the accelerators.
        model: the serialized form of the case.
    """
    with suppress(RuntimeError):
        return process.seconds(model, case.trial(model).feeds)
    return inf


def seconds_of_copies(process: ProviderProcess, case: ProbeCase) -> float:
    """Return the seconds in which the inputs and the output of a case are copied in and out.

    0 if the accelerators run no Relu, by which they are copied.
    """
    first, second, expected = case.make_arrays()
    first_type, *other_types = map(fed_type, case.types.values())
    arrays = {
        name: array.astype(type_name)
        for name, array, type_name in zip(
            ("first", "second", "output"),
            (first, second, expected),
            (first_type, *other_types, first_type),
            strict=True,
        )
        if type_name.startswith("float")  # not all providers run a Relu of other types
    }
    inputs = []
    outputs = []
    nodes = []
    for name, array in arrays.items():
        value_type = elem_type(str(array.dtype))
        inputs.append(helper.make_tensor_value_info(name, value_type, array.shape))
        outputs.append(helper.make_tensor_value_info(f"{name} copy", value_type, array.shape))
        nodes.append(helper.make_node("Relu", [name], [f"{name} copy"]))
    graph = helper.make_graph(nodes, "copies", inputs, outputs)
    opset = helper.make_opsetid("", 14)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    with suppress(RuntimeError):
        return process.seconds(model.SerializeToString(), arrays)
    return 0.0


def seconds_on_cpu(case: ProbeCase, num_threads: int) -> float:
    """Return the seconds of a run of a case in a session without accelerators.

    Args:
        num_threads: the number of threads of an op; 0 for the process' default.
    """
    from .session import InferenceSession  # imports this module

    options = quiet_options(num_threads)
    session = InferenceSession(case.model, options, accelerated="never")
    feeds = case.trial(case.model.SerializeToString()).feeds
    return seconds_of_run(session, feeds)


def cpu_environment(num_threads: int) -> tuple[object, ...]:
    """Return what the time of a node on the CPU depends on other than the node."""
    release = vars(sys.modules[__name__.partition(".")[0]])["__version__"]
    return release, num_threads, available_cpus()


def index_of_fastest(seconds: Iterable[float]) -> int:
    """Return the index of the fastest form; an earlier one if the gain is small."""
    best_index = 0
    best_seconds = inf
    for index, value in enumerate(seconds):
        if value < MAX_TIME_RATIO * best_seconds:
            best_index = index
            best_seconds = value
    return best_index
