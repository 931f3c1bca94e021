"""Functions of the provider whose results are constants.

In C's calling conventions a function may have fewer arguments than its caller passes, so one
function here serves several fields.
"""

from ...kernels.pointers import c_string, record_at
from ...kernels.structs import Address
from ..compiled_ops.api_functions import api_function, write_bool, write_int, write_word
from .ep_api import NOT_APPLICABLE, NOT_IMPLEMENTED
from .structs import EP, FACTORY

_create_status = api_function("CreateStatus")


def return_nothing() -> int:
    """Return null: success, false, 0 or no object."""
    return 0


def set_second_to_null(first: int, output: int) -> int:
    """Write null to the second argument: there is no such object."""
    write_word(output, 0)
    return 0


def set_third_to_null(first: int, second: int, output: int) -> int:
    """Write null to the third argument: there is no such object."""
    write_word(output, 0)
    return 0


def set_fourth_to_null(first: int, second: int, third: int, output: int) -> int:
    """Write null to the fourth argument: there is no such object."""
    write_word(output, 0)
    return 0


def set_second_to_true(first: int, output: int) -> int:
    """Write true to the second argument, for IsConcurrentRunSupported."""
    write_bool(output, 1)
    return 0


def set_second_to_zero(first: int, output: int) -> int:
    """Write 0 to the second argument, for GetPreferredDataLayout: channels first."""
    write_int(output, 0)
    return 0


def leave_layout(ep_address: Address, domain: int, operator: int, layout: int, output: int) -> int:
    """ShouldConvertDataLayoutForOp: leave the decision to ONNX Runtime."""
    write_int(output, -1)
    return 0


def is_not_applicable(
    factory_address: Address, devices: int, count: int, info: Address, output: int
) -> int:
    """ValidateCompiledModelCompatibilityInfo: the provider compiles no models."""
    write_int(output, NOT_APPLICABLE)
    return 0


def refuse_to_compile(ep_address: Address) -> int:
    """Compile of an EP that fuses no nodes. ONNX Runtime calls it for fused nodes only."""
    api = record_at(record_at(ep_address, EP).factory, FACTORY).api
    return _create_status(api, (NOT_IMPLEMENTED, c_string("this provider compiles no subgraphs")))


def do_not_pack(
    kernel: int, tensor: int, index: int, allocator: int, cache: int, out: Address
) -> int:
    """PrePackWeight: no constant input is packed."""
    write_bool(out, 0)
    return 0


def get_empty_text() -> int:
    """GetCompiledModelCompatibilityInfo: an empty text."""
    return c_string("")
