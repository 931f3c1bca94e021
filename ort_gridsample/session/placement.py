"""The record of where each node of a session runs."""

from __future__ import annotations

from dataclasses import dataclass

from ..detection.records import NodeRecord
from ..dialects.table import ATTENTION

#: The values of :attr:`Placement.runs_on`, other than the names of execution providers.
COMPILED_OP = "compiled op"
PYTHON_OP = "Python op"
ONNXRUNTIME = "onnxruntime"
REFUSED = ""


@dataclass(frozen=True, repr=False)
class Placement:
    """Where a node of a session runs. ``str()`` gives one line.

    Attributes:
        record: the :class:`NodeRecord` of the node.
        runs_on: ``"compiled op"``, ``"Python op"``, the name of an execution provider that comes
            before the CPU's, or ``"onnxruntime"`` for onnxruntime's own kernel. Empty if a session
            refuses the node.
        reason: why it is not a compiled op, what it is written as, what it is fused into, or why
            it is on the CPU.

            ``record.reason`` is another reason: why onnxruntime by itself does not run the node.
            For each value of ``runs_on``, this reason is:

            - ``"compiled op"``: the node that this one is fused into, why its grid could not be
              fused into it, or the times of the CPU and of a slower provider. Empty for all others.
            - ``"Python op"`` and ``"onnxruntime"``: why the node is not a compiled op, and these
              times.
            - another provider: what the node is written as, and why. Empty if the provider runs
              the node as it is.
            - empty: why a session refuses the node.

            A prediction adds a warning if onnxruntime's kernel reads outside of X, and the
            quantized node that prevents a fusion.

        fused: the names of the nodes that are fused into this node. They compute only its
            grid, or are those of a decomposed deformable attention.
        library: the path and the description of the library that contains the compiled op.

            Empty if this process compiles the op.
    """

    record: NodeRecord
    runs_on: str
    reason: str = ""
    fused: tuple[str, ...] = ()
    library: str = ""

    def __repr__(self) -> str:
        return f"<Placement {self.record.where}: {self.runs_on or 'refused'}>"

    def __str__(self) -> str:
        library = f" of {self.library}" if self.library else ""
        note = f" ({self.note})" if self.note else ""
        return f"{self.record.where}: {self.runs_on or 'refused'}{library}{note}"

    @property
    def is_ours(self) -> bool:
        """Whether the node runs on an op of this package."""
        return self.runs_on in (COMPILED_OP, PYTHON_OP)

    @property
    def note(self) -> str:
        """The reason, or how many nodes are fused into this one."""
        count = len(self.fused)
        if self.reason or not count:
            return self.reason
        if self.record.operator == ATTENTION:
            return f"in place of {count} nodes"
        nodes = "node that computes" if count == 1 else f"{count} nodes that compute"
        return f"fused with the {nodes} its grid"
