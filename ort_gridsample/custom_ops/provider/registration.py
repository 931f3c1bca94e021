"""Register the provider of this process with ONNX Runtime, without a file."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnxruntime

from ... import versions
from ...dialects.table import COMPILED_DOMAIN
from ...errors import GridSampleError, one_line
from ...kernels import library_file
from ...system.process import after_fork, created_once, keep_forever
from ..compiled_ops import c_api, registry, trampoline
from ..compiled_ops.catalog import FOREIGN_DOMAINS, Fields
from ..compiled_ops.record_image import RecordImage
from ..signals import with_signals_deferred
from .definitions import NAME, Overload
from .ep_api import OLDEST, PROVIDER_API_VERSION

if TYPE_CHECKING:
    # These import Numba.
    from ...kernels.compilation import FunctionSpec
    from .fused_nodes import FusedNodes

#: The place that errors name.
_WHERE = "register_provider"


class Provider:
    """The execution provider of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: The address of the FACTORY; 0 until onnxruntime loads the provider.
        self._factory_address = 0
        n_arguments = trampoline.ENTRY_POINTS["CreateEpFactories"]
        self._create_factories = c_api.callback(n_arguments, self._create, _creation_failure)
        #: Fuses nodes. None for a library's provider, and until onnxruntime loads the provider.
        self._fused_nodes: FusedNodes | None = None
        self.is_registered = False
        # ONNX Runtime may call it after Python has ended.
        keep_forever(self._create_factories)
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may have held the lock

    def register(self) -> None:
        """Register the provider, unless it is registered.

        Raises:
            GridSampleError: onnxruntime is too old, or the configured library cannot be used.
            ImportError: Numba is not installed and there is no library, or this system does not
                load the library that the registration needs.
        """
        with self._lock:
            if not self.is_registered:
                _check_onnxruntime()
                if not _is_listed():
                    self._register()
                self.is_registered = True

    def _register(self) -> None:
        path = library_file.configured_library()
        if path is None:
            reason = registry.unavailable_reason()
            if reason:
                raise ImportError(f"there is no execution provider to register: {reason}")
            onnxruntime.register_execution_provider_library(NAME, self._library_path())
            return
        library_file.validate(path)
        try:
            onnxruntime.register_execution_provider_library(NAME, str(path))
        except Exception as error:
            where = f"library {str(path)!r}"
            found = f"refused: {one_line(error)}"
            expected = "a library with an execution provider: build it again"
            raise GridSampleError(where, "file", found, expected) from error

    def _library_path(self) -> str:
        """Return the path of the library that leads onnxruntime to this process.

        Python never closes the library, so that sessions run after onnxruntime has closed it.
        """
        from . import constant_functions  # imports Numba

        (return_nothing,) = _provider_function_addresses([(constant_functions.return_nothing,)])
        functions = {
            "CreateEpFactories": c_api.address_of_callback(self._create_factories),
            "ReleaseEpFactory": return_nothing,
        }
        try:
            return trampoline.load(functions)[1]
        except trampoline.NoTrampolineError as error:
            message = f"the execution provider cannot be registered: {error}"
            raise ImportError(message) from error

    def _create(
        self,
        name: int,
        base: int,
        logger: int,
        factories: int,
        max_factories: int,
        n_factories: int,
    ) -> int:
        """CreateEpFactories, which ONNX Runtime calls during :meth:`register`."""
        from . import factory  # imports Numba

        api = c_api.get_api(base, PROVIDER_API_VERSION)
        if not api:
            message = f"ort_gridsample's execution provider needs onnxruntime {OLDEST} or newer"
            return c_api.create_status(c_api.get_api(base, 1), message)
        if not self._factory_address:
            self._factory_address = _load_factory(api, self._enable_fusion(api))
        (create,) = _provider_function_addresses([(factory.create_factories,)])
        arguments = (api, factories, n_factories, self._factory_address)
        return int(c_api.function(create, len(arguments))(*arguments))

    def allow_fusion(self, is_allowed: bool) -> None:
        """Set whether nodes are fused in sessions that this thread creates from now on."""
        if self._fused_nodes is not None:
            self._fused_nodes.allow(is_allowed)

    def _enable_fusion(self, api: int) -> dict[str, int]:
        """Create the object that fuses nodes; return the functions of an EP that call it."""
        from .fused_nodes import FusedNodes  # imports Numba

        ep_api = c_api.call(api, "GetEpApi")
        fused_nodes = FusedNodes(api, ep_api, _provider_function_addresses)
        keep_forever(fused_nodes)  # ONNX Runtime may call it after Python has ended
        self._fused_nodes = fused_nodes
        return {
            "fuse": c_api.address_of_callback(fused_nodes.fuse),
            "Compile": c_api.address_of_callback(fused_nodes.compile),
        }


def _creation_failure(error: BaseException, name: int, base: int, *_: int) -> int:
    return c_api.status_of(c_api.get_api(base, 1), error)


@created_once
def provider() -> Provider:
    """Return the provider of this process, which is created when it is first needed."""
    return Provider()


def register() -> str:
    """Register the provider, and return its name: see :meth:`Provider.register`."""
    with_signals_deferred(provider().register)
    return NAME


def is_registered() -> bool:
    """Whether :func:`register` succeeded, also if onnxruntime had the provider before."""
    return provider().is_registered


def allow_fusion(is_allowed: bool) -> None:
    """Set whether the provider fuses nodes in sessions that this thread creates from now on."""
    provider().allow_fusion(is_allowed)


def _check_onnxruntime() -> None:
    """Check that this onnxruntime runs the provider.

    Raises:
        GridSampleError: it does not.
    """
    installed = onnxruntime.__version__
    if not versions.is_at_least(installed, OLDEST):
        raise GridSampleError(_WHERE, "onnxruntime", installed, f"{OLDEST} or newer")
    if not hasattr(onnxruntime, "register_execution_provider_library"):
        found = f"a build of {installed} without register_execution_provider_library"
        expected = "a build with register_execution_provider_library"
        raise GridSampleError(_WHERE, "onnxruntime", found, expected)


def _is_listed() -> bool:
    """Whether onnxruntime has the provider already, perhaps from a library."""
    return any(device.ep_name == NAME for device in onnxruntime.get_ep_devices())


def _load_factory(api: int, fusion: Fields) -> int:
    """Create the FACTORY in the memory of this process, and return its address.

    Args:
        api: the OrtApi.
        fusion: the functions of an EP that fuses nodes.
    """
    from .factory_image import add_factory

    ops = registry.compiled_ops()
    ops.compile_descriptions()
    domains = [ops.domain(api, name) for name in (COMPILED_DOMAIN, *FOREIGN_DOMAINS)]
    release = vars(sys.modules[__name__.partition(".")[0]])["__version__"]

    def op_address(overload: Overload) -> int:
        return ops.address(overload.op, overload.types)

    image = RecordImage()
    offset = add_factory(image, release, op_address, domains, fusion)
    return registry.load_image(image, _provider_function_addresses) + offset


def _provider_function_addresses(function_specs: Sequence[FunctionSpec]) -> list[int]:
    """Compile functions of this folder, and return their addresses."""
    from ...kernels.compilation import compiled_function

    return [compiled_function(function_spec).address() for function_spec in function_specs]
