"""The installed onnxruntime as the runner of a probe."""

from collections.abc import Mapping, Sequence

import onnxruntime

from ..inference.runtime_probe import OutputType, RuntimeProbe
from ..reference.arrays import Array
from . import forks


class InstalledRuntime:
    """The installed onnxruntime; see :class:`ort_gridsample.inference.runtime_probe.CpuRunner`."""

    def run(
        self,
        model: bytes,
        feeds: Sequence[Mapping[str, Array]],
        *,
        optimized: bool,
    ) -> list[list[Array]]:
        """Run a serialized model on the CPU; return all outputs of each run."""
        options = quiet_options()
        if not optimized:
            level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.graph_optimization_level = level
        session = forks.cpu_session(model, options)
        return [session.run(None, dict(run_feeds)) for run_feeds in feeds]

    def output_types(self, model: bytes) -> list[OutputType]:
        """Load a serialized model, and return the types of its outputs.

        The model is not initialized for runs. That needs the schemas of operators, and no kernels.
        """
        session = forks.loaded_session(model, quiet_options())
        types = list[OutputType]()
        for output in session.outputs_meta:
            element_type = output.type.removeprefix("tensor(").removesuffix(")")
            types.append(OutputType(output.name, element_type, output.shape))
        return types


def quiet_options(num_threads: int = 1) -> onnxruntime.SessionOptions:
    """Return options of a session that logs nothing, for models that onnxruntime may refuse.

    Args:
        num_threads: the number of threads of an op, or 0 for onnxruntime's default.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = num_threads
    return options


#: The probe of the installed onnxruntime.
PROBE = RuntimeProbe(InstalledRuntime())
