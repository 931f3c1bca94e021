"""Old operators that onnx's version converter does not convert, or converts wrongly.

* ``Resize``, and ``Upsample``, which becomes one: the converter leaves out the attributes with
  which a newer Resize computes the same, so that its output is another one.
* ``Clip`` and ``Pad``: the converter writes float32 constants for inputs of any type.
* ``Dropout``: outside of training, its mask has defined values since opset 12 only.
* ``Scan``: it has no batch axis since opset 9, and the converter keeps the axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .. import spec
from ..errors import GridSampleError, nested_name, where_node
from ..graph.expressions import Expressions
from ..graph.new_names import Names
from ..graph.scope import Scope, constant_tensor, display_name, domain_of
from ..inference.types import Inference

#: The first opset in which Resize has its attributes, and in which Clip and Pad have their values
#: as inputs.
_FIRST_OPSET_WITH_RESIZE_MODES = 11
_FIRST_OPSET_WITH_DEFINED_MASK = 12
_FIRST_OPSET_WITHOUT_BATCH_AXIS = 9
#: Operator -> the first of the inputs that the converter writes as float32 constants.
_FIRST_CONSTANT_INPUT = {"Clip": 1, "Pad": 2}


class OldOperators:
    """The nodes of a model whose meaning or types the converter would change.

    Args:
        old_opset: its opset.
        new_opset: the opset to which it is converted.
    """

    def __init__(self, scopes: Sequence[Scope], old_opset: int, new_opset: int) -> None:
        self._old_opset = old_opset
        self._new_opset = new_opset
        self._scopes = scopes
        self._rounded_up = set[str]()  # the outputs of Resizes that round coordinates up
        self._op_types = set[str]()
        if min(old_opset, new_opset) < _FIRST_OPSET_WITH_DEFINED_MASK:
            for scope in scopes:
                self._op_types.update(scope.op_types)

    @property
    def needs_types(self) -> bool:
        """Whether the types of values are needed to write these nodes."""
        is_raised = self._passes(_FIRST_OPSET_WITH_RESIZE_MODES)
        return is_raised and not self._op_types.isdisjoint(_FIRST_CONSTANT_INPUT)

    def prepare(self, names: Names) -> None:
        """Write nodes before the conversion, so that the converter keeps their meaning.

        Args:
            names: the names of the model's values and nodes.

        Raises:
            GridSampleError: a node cannot be written in the new opset.
        """
        if "Scan" in self._op_types:
            self._check_scans()
        if self._passes(_FIRST_OPSET_WITH_DEFINED_MASK) and "Dropout" in self._op_types:
            self._check_masks()
        if self._passes(_FIRST_OPSET_WITH_RESIZE_MODES) and "Resize" in self._op_types:
            self._split_resizes(names)

    def finish(self, converted: Sequence[Scope], inference: Inference) -> None:
        """Complete the nodes that the converter wrote.

        Args:
            converted: the scopes of the converted model, in the order of those before.
            inference: the types of the values before the conversion.
        """
        if not self._passes(_FIRST_OPSET_WITH_RESIZE_MODES):
            return
        for scope, old_scope in zip(converted, self._scopes, strict=True):
            for node in scope:
                if domain_of(node.domain):
                    continue
                if node.op_type == "Resize":
                    self._write_resize_modes(node)
                elif node.op_type in _FIRST_CONSTANT_INPUT:
                    data_type = inference.value_in_all_calls(old_scope, node.input[0]).type
                    _write_constants_as(node, scope, data_type)

    def _passes(self, opset: int) -> bool:
        """Whether the model is raised to ``opset`` or beyond it."""
        return self._old_opset < opset <= self._new_opset

    def _check_scans(self) -> None:
        """Raise an error if a Scan has a batch axis in only one of the two opsets.

        Raises:
            GridSampleError: there is such a Scan.
        """
        first = _FIRST_OPSET_WITHOUT_BATCH_AXIS
        if (self._old_opset < first) == (self._new_opset < first):
            return
        for scope, _, node in self._nodes("Scan"):
            side = "before" if self._old_opset < first else "since"
            axis = "a batch axis" if self._old_opset < first else "no batch axis"
            raise GridSampleError(
                where_node("Scan", nested_name(display_name(node), scope.path)),
                "opset",
                f"{self._new_opset} in the patched model",
                f"one {side} {first}: this Scan has {axis}",
            )

    def _nodes(self, op_type: str) -> Iterator[tuple[Scope, int, onnx.NodeProto]]:
        """Yield the nodes of one of ONNX's operators, with their scopes and indices."""
        # Inner graphs first: a list of nodes that was rewritten holds copies.
        for scope in reversed(self._scopes):
            for index in reversed(scope.indices_of((op_type,))):
                if not domain_of(scope.nodes[index].domain):
                    yield scope, index, scope.nodes[index]

    def _check_masks(self) -> None:
        """Raise an error if the mask of a Dropout is read.

        Raises:
            GridSampleError: the mask of a Dropout is read.
        """
        for scope, _, node in self._nodes("Dropout"):
            mask = node.output[1] if len(node.output) > 1 else ""
            if mask in scope.readers:
                raise GridSampleError(
                    where_node("Dropout", nested_name(display_name(node), scope.path)),
                    "mask",
                    f"{mask!r}, which is read",
                    f"no mask: before opset {_FIRST_OPSET_WITH_DEFINED_MASK} it has no defined "
                    "values outside of training",
                )

    def _split_resizes(self, names: Names) -> None:
        """Write nearest Resizes so that each rounds the coordinates of all axes alike.

        onnxruntime rounds the coordinates of a Resize-10 up on axes that become shorter, and down
        on all others. If some scales are smaller than 1 and others larger, or none is known, one
        Resize makes axes longer and the next one makes axes shorter.
        """
        for scope, index, node in self._nodes("Resize"):
            mode = next((a.s for a in node.attribute if a.name == "mode"), b"nearest")
            if mode != b"nearest":
                continue
            output = node.output[0]
            scales = scope.constant_value(node.input[1])
            if scales is not None and (scales >= 1).all():
                continue
            self._rounded_up.add(output)
            if scales is not None and (scales <= 1).all():
                continue
            e = Expressions(output, 10, names=names)
            all_scales = e.input(node.input[1], "float32")
            longer = deepcopy(node)
            longer.ClearField("name")
            longer.input[1] = e.name_of(e.maximum(all_scales, 1))
            longer.output[0] = names.new(f"{output}_longer")
            e.node(longer)
            shorter = deepcopy(node)
            shorter.input[:] = [longer.output[0], e.name_of(e.minimum(all_scales, 1))]
            e.node(shorter)
            scope.replace_nodes({index: e.finish_all()})

    def _write_resize_modes(self, node: onnx.NodeProto) -> None:
        """Write the attributes with which a Resize computes what it did before opset 11."""
        modes = {
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "ceil" if node.output[0] in self._rounded_up else "floor",
        }
        kept = [attribute for attribute in node.attribute if attribute.name not in modes]
        del node.attribute[:]
        node.attribute.extend(kept)
        node.attribute.extend(helper.make_attribute(*mode) for mode in modes.items())


def _write_constants_as(node: onnx.NodeProto, scope: Scope, data_type: str | None) -> None:
    """Write the constants that the converter made for a Clip or Pad in the type of its input."""
    if data_type not in spec.FLOATS or data_type == "float32":
        return
    for name in node.input[_FIRST_CONSTANT_INPUT[node.op_type] :]:
        constant = scope.nodes[scope.makers[name]]  # the converter wrote it for this node alone
        tensor = constant_tensor(constant)
        assert tensor is not None
        limits = np.finfo(data_type)
        value = numpy_helper.to_array(tensor).clip(limits.min, limits.max).astype(data_type)
        del constant.attribute[:]
        constant.attribute.append(helper.make_attribute("value", numpy_helper.from_array(value)))
