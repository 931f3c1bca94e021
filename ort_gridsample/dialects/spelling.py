"""Dialects: how an operator is written as a node, and how its attributes are read and written.

Reading and writing use the same :class:`Spelling`, in opposite directions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import onnx
from onnx import helper

from ..errors import GridSampleError
from ..functions import validation
from ..graph.scope import domain_of
from ..reference.arrays import Array
from ..spec import MODE_SYNONYMS

#: A value of an attribute: a word or a code. Either the operator's or a node's.
AttributeScalar = str | int


@dataclass(frozen=True)
class AttributeReference:
    """A reference to an attribute of the enclosing function (ONNX's ``ref_attr_name``)."""

    name: str

    def __str__(self) -> str:
        return f"@{self.name}"


AttributeValue = AttributeScalar | AttributeReference
#: Return the value of a node's input, by its index; None if it is not constant.
ConstantInput = Callable[[int], "Array | None"]


@dataclass(frozen=True)
class Spelling:
    """How a dialect writes one attribute of an operator: its name, its values and its default.

    Attributes:
        name: the attribute's name on the node.
        values: the operator's value (a mode by its name in ``MODE_RULES`` of
            :mod:`ort_gridsample.reference.taps`) -> the value on the node.
        default: the operator's value of a node without the attribute; None: the attribute is
            required.
        input_index: the index of the input that can hold the value instead, as a constant.
        other_names: other names of the attribute that are read as well.
        other_values: other values on a node that are read as well -> the operator's value.
    """

    name: str
    values: Mapping[AttributeScalar, AttributeScalar] = field(hash=False)
    default: AttributeScalar | None = None
    input_index: int | None = None
    other_names: tuple[str, ...] = ()
    other_values: Mapping[AttributeScalar, AttributeScalar] = field(
        default_factory=dict, hash=False
    )

    def can_be_read_as(self, other: Spelling) -> bool:
        """Whether ``other`` reads every value on a node, and its absence, with the meaning here.

        ``other`` may read more values.
        """
        has_same_values = (self.values, self.default) == (other.values, other.default)
        return has_same_values and self.operator_values.items() <= other.operator_values.items()

    @cached_property
    def operator_values(self) -> Mapping[AttributeScalar, AttributeScalar]:
        """Value on a node -> the operator's value, for all values that are read."""
        values = {node_value: value for value, node_value in self.values.items()}
        return {**self.other_values, **values}

    def choices_text(self) -> str:
        """Return the values that a node may have, codes with their meaning.

        >>> Spelling("mode", {"linear": 0, "nearest": 1}).choices_text()
        '0 (linear) or 1 (nearest)'
        >>> Spelling("mode", {"linear": "bilinear", "nearest": "nearest"}).choices_text()
        "'bilinear' or 'nearest'"
        """
        texts = []
        for value, written in self.values.items():
            is_code = isinstance(written, int) and isinstance(value, str)
            texts.append(f"{written} ({value})" if is_code else repr(written))
        return validation.join_choices(texts)


@dataclass(frozen=True)
class Dialect:
    """One way to write one operator as a node.

    Attributes:
        name: the name of the dialect, and of the target of a patch that writes it.
        operator: a key of :data:`ort_gridsample.spec.OP_SPECS`.
        op_type: the type of the node.
        domains: the domains in which the node is read. The first is written. Empty: the node is
            read in any domain, and written in ``written_domain``. The ONNX domain is ``""``, and
            ``"ai.onnx"`` is another name of it.
        attributes: the operator's attribute -> its spelling.
        identifying_attributes: attributes that identify the dialect -> their values. A node of the
            dialect has all of these attributes, each with one of its values; the first value is
            written.
        ignored: attributes that do not affect the result.
        axes: the numbers of spatial axes that a node can have, or None for any number.
        version: the version of the domain that a model imports.
        written_domain: the domain that is written if ``domains`` is empty.
        input_attributes: the operator's input -> the attribute (ints) that can hold it instead.
        reads_only: whether the dialect is read but is not a target of a patch.
        requires_code: whether a node is of this dialect only if it has an integer where the
            standard has a word.
    """

    #: Whether grids are (N, r, D1_out, …, Dr_out) and not (N, D1_out, …, Dr_out, r).
    has_planar_grids: ClassVar[bool] = False
    #: The coordinate of the outer edge of X.
    edge_coordinate: ClassVar[int] = 1

    name: str
    operator: str
    op_type: str
    domains: tuple[str, ...]
    attributes: Mapping[str, Spelling] = field(hash=False)
    identifying_attributes: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    ignored: tuple[str, ...] = ()
    axes: tuple[int, ...] | None = None
    version: int = 1
    written_domain: str = ""
    input_attributes: Mapping[str, str] = field(default_factory=dict, hash=False)
    reads_only: bool = False
    requires_code: bool = False

    @property
    def domain(self) -> str:
        """The domain in which a node is written; the empty string for the ONNX domain."""
        return domain_of(self.domains[0] if self.domains else self.written_domain)

    def spells(self, node: onnx.NodeProto) -> bool:
        """Whether ``node`` is of this dialect."""
        if node.op_type != self.op_type:
            return False
        if self.domains and domain_of(node.domain) not in map(domain_of, self.domains):
            return False
        if self.requires_code and not self._has_code(node):
            return False
        identifying = self.identifying_attributes
        values = {
            attribute.name: attribute.s.decode(errors="replace")
            for attribute in node.attribute
            if attribute.name in identifying
        }
        return all(values.get(name) in allowed for name, allowed in identifying.items())

    def _has_code(self, node: onnx.NodeProto) -> bool:
        """Whether an attribute that is a word in the standard is an integer in ``node``."""
        names = self._names_of_words
        return any(a.type == onnx.AttributeProto.INT and a.name in names for a in node.attribute)

    @cached_property
    def _names_of_words(self) -> frozenset[str]:
        """The names of the attributes that are words in the standard."""
        names = set[str]()
        for spelling in self.attributes.values():
            if any(isinstance(value, str) for value in spelling.values):
                names.update((spelling.name, *spelling.other_names))
        return frozenset(names)

    @cached_property
    def _known_names(self) -> frozenset[str]:
        """The names of the attributes that a node of this dialect may have."""
        names = {*self.identifying_attributes, *self.ignored, *self.input_attributes.values()}
        for spelling in self.attributes.values():
            names.update((spelling.name, *spelling.other_names))
        return frozenset(names)

    def read(
        self,
        where: str,
        node: onnx.NodeProto,
        constant: ConstantInput,
        note: str,
    ) -> dict[str, AttributeValue]:
        """Return the operator's attributes of ``node``.

        Args:
            where: the node, for error messages.
            node: a node of this dialect.
            constant: returns the value of an input of ``node`` if it is constant.
            note: text that error messages append to the expected values.

        Raises:
            GridSampleError: an attribute is unknown, missing, not constant or not one of its
                values.
        """
        for attribute in node.attribute:
            if attribute.name not in self._known_names:
                listed_names = [spelling.name for spelling in self.attributes.values()]
                expected = validation.format_choices(listed_names)
                raise GridSampleError(where, "attribute", repr(attribute.name), expected)
            if attribute.name in self.input_attributes.values() and attribute.ref_attr_name:
                found = f"the attribute {attribute.ref_attr_name!r} of its function"
                raise GridSampleError(where, attribute.name, found, "a list of numbers")
        namespace_word = "opset" if domain_of(node.domain) == "" else "dialect"
        reader = _NodeReader(where, node, constant, note, namespace_word)
        return {name: reader.read(spelling) for name, spelling in self.attributes.items()}

    def write(self, attributes: Mapping[str, AttributeScalar]) -> list[onnx.AttributeProto]:
        """Return ``attributes`` and the identifying attributes as this dialect writes them.

        Args:
            attributes: the operator's attribute -> its value.
        """
        written = [
            helper.make_attribute(spelling.name, spelling.values[attributes[name]])
            for name, spelling in self.attributes.items()
            if name in attributes
        ]
        for name, values in self.identifying_attributes.items():
            written.append(helper.make_attribute(name, values[0]))
        return written


@dataclass(frozen=True)
class PlanarDialect(Dialect):
    """A sampler of BEVFormer_tensorrt: its grids have coordinates in axis 1, from -10 to 10."""

    has_planar_grids: ClassVar[bool] = True
    edge_coordinate: ClassVar[int] = 10


@dataclass(frozen=True)
class _NodeReader:
    """Reads the operator's attributes of a node, as :meth:`Dialect.read`.

    Attributes:
        where, node, constant, note: the arguments of :meth:`Dialect.read`.
        namespace_word: what defines the names of modes: ``"opset"`` or ``"dialect"``.
    """

    where: str
    node: onnx.NodeProto
    constant: ConstantInput
    note: str
    namespace_word: str

    def read(self, spelling: Spelling) -> AttributeValue:
        """Return the operator's value of one attribute."""
        name_and_value = self._given(spelling)
        if isinstance(name_and_value, AttributeReference):
            return name_and_value
        if name_and_value is not None:
            name, node_value = name_and_value
        else:
            name = spelling.name
            node_value = self._from_input(spelling)
        if node_value is None:
            if spelling.default is None:
                expected = spelling.choices_text()
                raise GridSampleError(self.where, spelling.name, "missing", expected)
            return spelling.default
        operator_values = spelling.operator_values
        if not isinstance(node_value, (str, int)) or node_value not in operator_values:
            hint = _renamed_mode_hint(node_value, spelling.values.values(), self.namespace_word)
            expected = spelling.choices_text() + self.note + hint
            raise GridSampleError(self.where, name, repr(node_value), expected)
        return operator_values[node_value]

    def _given(self, spelling: Spelling) -> tuple[str, object] | AttributeReference | None:
        """Return the name and the value of an attribute as the node has them, or None."""
        given: tuple[str, object] | None = None
        for attribute in self.node.attribute:
            if attribute.name not in (spelling.name, *spelling.other_names):
                continue
            if attribute.ref_attr_name:
                return AttributeReference(attribute.ref_attr_name)
            if given is not None:
                raise GridSampleError(self.where, spelling.name, "given twice", "one value")
            value: object = helper.get_attribute_value(attribute)
            if isinstance(value, bytes):
                value = value.decode(errors="replace")
            given = (attribute.name, value)
        return given

    def _from_input(self, spelling: Spelling) -> int | float | None:
        """Return the value of an attribute that the node has as a constant input, or None.

        A float that is an integer is returned as one.
        """
        inputs = self.node.input
        input_index = spelling.input_index
        if input_index is None or input_index >= len(inputs) or not inputs[input_index]:
            return None
        value = self.constant(input_index)
        found = f"the input {inputs[input_index]!r}"
        if value is None:
            raise GridSampleError(self.where, spelling.name, found, "a constant")
        if value.size != 1 or value.dtype.kind not in "biuf":
            found = f"{found} of type {value.dtype} and shape {value.shape}"
            raise GridSampleError(self.where, spelling.name, found, "a single number")
        number: bool | int | float = value.item()
        if isinstance(number, float) and not number.is_integer():
            return number
        return int(number)


def _renamed_mode_hint(
    node_value: object, values: Collection[AttributeScalar], namespace_word: str
) -> str:
    """Return a hint if the value is a mode of another opset, which renamed it; else ""."""
    for older, newer in MODE_SYNONYMS.items():
        for word, synonym in ((older, newer), (newer, older)):
            if node_value == word and synonym in values:
                return f"; {word!r} is called {synonym!r} in this {namespace_word}"
    return ""


def attribute_input(node: onnx.NodeProto, dialect: Dialect, name: str) -> Array | None:
    """Return the operator's input ``name`` if ``node`` has it as an attribute.

    Returns:
        The values of the attribute. None if the node has no such attribute, or if the attribute
        refers to one of the node's function.
    """
    attribute_name = dialect.input_attributes.get(name)
    for attribute in node.attribute:
        if attribute.name == attribute_name and not attribute.ref_attr_name:
            return np.array(attribute.ints, np.int64)
    return None
