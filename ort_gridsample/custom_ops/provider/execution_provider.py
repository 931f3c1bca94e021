"""The provider: the functions of OrtEp.

It claims the nodes for which it has a kernel, and ONNX Runtime creates these kernels.
"""

from typing import Any

import numpy as np
from numba.extending import register_jitable

from ...kernels.pointers import (
    acquire_lock,
    address_of,
    array_at,
    c_string,
    call,
    free,
    local_record,
    malloc,
    record_at,
    release_lock,
    sizeof,
)
from ...kernels.structs import Address, RecordRef
from ..compiled_ops.api_functions import api_function, write_word
from ..compiled_ops.c_api import INVALID_ARGUMENT
from ..compiled_ops.creation import release_status, word_index
from ..compiled_ops.requests import Status
from ..compiled_ops.sampling import (
    EXTENSION_MODES,
    EXTENSION_PADDINGS,
    LINEAR,
    MODE_WORDS,
    mode_of_word,
)
from ..compiled_ops.sentences import create_status, strlen
from ..compiled_ops.structs import OP, OP_CONTEXT, TEXT
from .ep_api import STRING_ATTRIBUTE
from .node_kernels import element_type, find_overload
from .structs import BUFFER, CONSTRAINT, DEFINITION, EP, FACTORY, N_INPUTS, NODE_INPUTS, OVERLOAD

_get_num_nodes = api_function("Graph_GetNumNodes", 1)
_get_nodes = api_function("Graph_GetNodes")
_get_num_inputs = api_function("Node_GetNumInputs", 1)
_get_inputs = api_function("Node_GetInputs")
_get_type = api_function("GetValueInfoTypeInfo", 1)
_get_producer = api_function("ValueInfo_GetValueProducer", 2)
_get_operator = api_function("Node_GetOperatorType", 1)
_get_attribute = api_function("Node_GetAttributeByName", 1)
_read_attribute = api_function("ReadOpAttr", 1)

_look_up_kernel = api_function("EpGraphSupportInfo_LookUpKernel", 1)
_add_node = api_function("EpGraphSupportInfo_AddSingleNode")
_create_registry = api_function("CreateKernelRegistry", 1)
_release_registry = api_function("ReleaseKernelRegistry")
_create_builder = api_function("CreateKernelDefBuilder", 1)
_release_builder = api_function("ReleaseKernelDefBuilder")
_set_operator = api_function("KernelDefBuilder_SetOperatorType")
_set_domain = api_function("KernelDefBuilder_SetDomain")
_set_versions = api_function("KernelDefBuilder_SetSinceVersion")
_set_provider = api_function("KernelDefBuilder_SetExecutionProvider")
_add_constraint = api_function("KernelDefBuilder_AddTypeConstraint")
_build = api_function("KernelDefBuilder_Build", 1)
_add_kernel = api_function("KernelRegistry_AddKernel")
_release_definition = api_function("ReleaseKernelDef")
_get_data_type = api_function("GetTensorDataType", 1)


def get_ep_name(ep_address: Address) -> int:
    """GetName of OrtEp."""
    return record_at(record_at(ep_address, EP).factory, FACTORY).name


# --- Nodes ---


def get_capability(ep_address: Address, graph: int, support: int) -> Status:
    """GetCapability: claim the nodes of ``graph`` that the provider runs.

    Args:
        ep_address: the EP.
        graph: the OrtGraph: the model's graph, or the body of a node.
        support: the OrtEpGraphSupportInfo, to which the nodes are added.
    """
    ep = record_at(ep_address, EP)
    factory = record_at(ep.factory, FACTORY)
    status, count = _get_num_nodes(factory.api, (graph,))
    if status != 0 or count == 0:
        return status
    memory = malloc(8 * count)
    if memory == 0:
        return _no_memory(factory)
    status = _get_nodes(factory.api, (graph, memory, count))
    nodes = array_at(memory, (count,), np.int64)
    if status == 0 and ep.fuse != 0 and _may_fuse(factory, nodes):
        call(ep.fuse, (graph, support, memory, count))
    for index in range(count):
        node = nodes[index]
        if status == 0 and node != 0:
            status, definition = _look_up_kernel(factory.ep_api, (support, node))
            if status == 0 and definition != 0 and _has_state(factory, node):
                status = _add_node(factory.ep_api, (support, node))
    free(memory)
    return status


@register_jitable
def _may_fuse(factory: RecordRef, nodes: Any) -> bool:
    """Whether the graph may have nodes to fuse.

    It has a GridSample, and the ReduceSum that deformable attention always has or an operator that
    computes a grid. To read a graph in Python takes longer than this test.
    """
    has_sample = False
    has_sum = False
    for node in nodes:
        operator = _operator_index(factory, node, c_string("GridSample ReduceSum "))
        if operator == 0 and _has_computed_grid(factory, node):
            return True
        has_sample = has_sample or operator == 0
        has_sum = has_sum or operator == 1
    return has_sample and has_sum


@register_jitable
def _operator_index(factory: RecordRef, node: int, operators: int) -> int:
    """Return the index of a node's type among ``operators``, each followed by a blank; or -1."""
    status, operator = _get_operator(factory.api, (node,))
    if status != 0:
        release_status(factory.api, (status,))
        return -1
    word = local_record(TEXT)
    word.data = operator
    word.length = strlen(operator)
    return word_index(operators, word)


@register_jitable
def _has_computed_grid(factory: RecordRef, node: int) -> bool:
    """Whether one of the factory's ``grid_makers`` computes the grid of a GridSample."""
    inputs = local_record(NODE_INPUTS)
    if not _read_inputs(factory, node, inputs) or inputs.values[1] == 0:
        return False
    status, producer, _ = _get_producer(factory.api, (inputs.values[1],))
    if status != 0:
        release_status(factory.api, (status,))
        return False
    return producer != 0 and _operator_index(factory, producer, factory.grid_makers) >= 0


@register_jitable
def _read_inputs(factory: RecordRef, node: int, inputs: RecordRef) -> bool:
    """Set NODE_INPUTS to the inputs of a node; return whether it has as many."""
    status, count = _get_num_inputs(factory.api, (node,))
    if status == 0 and count == N_INPUTS:
        status = _get_inputs(factory.api, (node, address_of(inputs), count))
    if status != 0:
        release_status(factory.api, (status,))
        return False
    return count == N_INPUTS


@register_jitable
def _no_memory(factory: RecordRef) -> Status:
    message = c_string("not enough memory for the nodes of a graph")
    return create_status(factory.api, (INVALID_ARGUMENT, message))


@register_jitable
def _has_state(factory: RecordRef, node: int) -> bool:
    """Whether there is a state for a node, so that its kernel can be created.

    A library may be built without some types and modes. A mode that does not exist counts as
    supported, so that creating the kernel fails with an error that lists the modes. One that only
    this package's own ops have is left to onnxruntime, which refuses it in a standard node.
    """
    inputs = local_record(NODE_INPUTS)
    if not _read_inputs(factory, node, inputs):
        return False
    first = _value_type(factory, inputs.values[0])
    second = _value_type(factory, inputs.values[1])
    overload_address = find_overload(factory, first, second)
    if overload_address == 0:
        return False
    if _has_word(factory, node, c_string("mode"), c_string(EXTENSION_MODES)):
        return False
    if _has_word(factory, node, c_string("padding_mode"), c_string(EXTENSION_PADDINGS)):
        return False
    overload = record_at(overload_address, OVERLOAD)
    op = record_at(overload.op, OP)
    if record_at(op.op_context, OP_CONTEXT).compile_state != 0:
        return True
    states = array_at(op.states, (overload.n_states,), np.int64)
    mode = _mode(factory, node) if overload.n_states > 1 else 0
    return mode < 0 or states[mode] != 0


@register_jitable
def _value_type(factory: RecordRef, value: int) -> int:
    """Return the ONNXTensorElementDataType of an OrtValueInfo; 0 if it is unknown."""
    status, type_info = _get_type(factory.api, (value,))
    if status != 0:
        release_status(factory.api, (status,))
        return 0
    return element_type(factory.api, type_info)


@register_jitable
def _mode(factory: RecordRef, node: int) -> int:
    """Return the index of a node's mode; -1 if there is no such mode."""
    return mode_of_word(_word(factory, node, c_string("mode"), c_string(MODE_WORDS), LINEAR))


@register_jitable
def _has_word(factory: RecordRef, node: int, name: Address, words: Address) -> bool:
    """Whether an attribute of a node is one of ``words``, each followed by a blank."""
    return _word(factory, node, name, words, -1) >= 0


@register_jitable
def _word(factory: RecordRef, node: int, name: Address, words: Address, default: int) -> int:
    """Return the index of a node's attribute among ``words``, each followed by a blank.

    The result is ``default`` if the node has no such attribute, and -1 if there is no such word.
    """
    status, attribute = _get_attribute(factory.api, (node, name))
    if status != 0:
        release_status(factory.api, (status,))
        return default
    if attribute == 0:
        return default
    value = local_record(BUFFER)
    for index in range(len(value.words)):
        value.words[index] = 0
    arguments = (attribute, STRING_ATTRIBUTE, address_of(value), sizeof(BUFFER) - 1)
    status, _ = _read_attribute(factory.api, arguments)
    if status != 0:
        release_status(factory.api, (status,))
        return -1
    word = local_record(TEXT)
    word.data = address_of(value)
    word.length = strlen(word.data)
    return word_index(words, word)


# --- Kernels ---


def get_kernel_registry(ep_address: Address, out: Address) -> Status:
    """GetKernelRegistry: create the registry once."""
    factory = record_at(record_at(ep_address, EP).factory, FACTORY)
    acquire_lock(factory)
    status = 0
    if factory.registry == 0:
        status, registry = _create_registry(factory.ep_api, ())
        if status == 0:
            status = _add_kernels(factory, registry)
            if status == 0:
                factory.registry = registry
            else:
                _release_registry(factory.ep_api, (registry,))
    release_lock(factory)
    write_word(out, factory.registry)
    return status


@register_jitable
def _add_kernels(factory: RecordRef, registry: int) -> Status:
    """Add a kernel for each DEFINITION to an OrtKernelRegistry."""
    ep_api = factory.ep_api
    definitions = array_at(factory.definitions, (factory.n_definitions,), DEFINITION)
    status = 0
    for index in range(factory.n_definitions):
        if status == 0:
            status, builder = _create_builder(ep_api, ())
            if status == 0:
                status = _add_definition(factory, registry, builder, definitions[index])
                _release_builder(ep_api, (builder,))
    return status


@register_jitable
def _add_definition(
    factory: RecordRef, registry: int, builder: int, definition: RecordRef
) -> Status:
    """Add the kernel of a DEFINITION to an OrtKernelRegistry."""
    ep_api = factory.ep_api
    status = _set_operator(ep_api, (builder, definition.operator))
    status = status or _set_domain(ep_api, (builder, definition.domain))
    status = status or _set_versions(ep_api, (builder, definition.first, definition.last))
    status = status or _set_provider(ep_api, (builder, factory.name))
    for index in range(N_INPUTS):
        if status == 0:
            name = c_string("T1") if index == 0 else c_string("T2")
            status = _add_types(ep_api, builder, name, definition.constraints[index])
    if status == 0:
        status, kernel = _build(ep_api, (builder,))
        if status == 0:
            arguments = (registry, kernel, factory.create_kernel, address_of(factory))
            status = _add_kernel(ep_api, arguments)
            _release_definition(ep_api, (kernel,))
    return status


@register_jitable
def _add_types(ep_api: Address, builder: int, name: int, constraint: RecordRef) -> Status:
    """Add a CONSTRAINT with this ``name`` to an OrtKernelDefBuilder."""
    types = local_record(CONSTRAINT)
    status = 0
    for index in range(constraint.n_types):
        if status == 0:
            status, types.types[index] = _get_data_type(ep_api, (constraint.types[index],))
    arguments = (builder, name, address_of(types), constraint.n_types)
    return status or _add_constraint(ep_api, arguments)
