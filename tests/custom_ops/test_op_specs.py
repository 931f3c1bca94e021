"""The ops that are made from the specifications of the operators and from the dialects."""

import itertools

import pytest

from ort_gridsample import spec
from ort_gridsample.custom_ops.compiled_ops import catalog
from ort_gridsample.custom_ops.provider import definitions
from ort_gridsample.dialects import table


@pytest.mark.parametrize("operator", spec.OP_SPECS.values(), ids=spec.OP_SPECS)
def test_operator_has_one_compiled_op_for_every_combination_of_types(operator: spec.OpSpec) -> None:
    (op,) = [op for op in catalog.OPS if op.name == operator.name]
    types = operator.newest.types
    assert op.inputs == tuple(types)
    assert op.op_type == operator.compiled_type
    rows = itertools.product(*types.values())
    combinations = [dict(zip(types, row, strict=True)) for row in rows]
    expected = [
        tuple(row.values())
        for row in combinations
        if all(row[name] == row[other] for name, other in operator.same_types.items())
        and all(name in catalog.ELEMENT_TYPES for name in row.values())
    ]
    assert sorted(op.types) == sorted(expected)


@pytest.mark.parametrize("operator", spec.OP_SPECS)
def test_operator_has_one_op_with_the_interface_of_the_python_op(operator: str) -> None:
    (op,) = [op for op in catalog.DOMAINS[table.DOMAIN] if op.op_type == operator]
    assert op.n_outputs == 2


def test_provider_has_kernels_for_the_standard_operators() -> None:
    names = {overload.op.name for overload in definitions.overloads()}
    assert names == set(spec.OPERATORS)
    every = definitions.definitions(definitions.overloads())
    versions = {(row.operator, row.first) for row in every if row.domain == ""}
    assert versions == {(name, opset) for name, rows in spec.OPERATORS.items() for opset in rows}


def test_types_of_the_inputs_determine_the_op_of_a_provider() -> None:
    types = [overload.types for overload in definitions.overloads()]
    assert len(set(types)) == len(types)


def test_nodes_of_other_packages_have_an_op_in_each_domain_that_their_row_states() -> None:
    expected = {(dialect.domain, dialect.op_type) for dialect in table.OPENMMLAB}
    for node_type, signature in table.ATTENTION_SIGNATURES.items():
        expected |= {(domain, node_type) for domain in signature.op_domains}
    ops = catalog.FOREIGN_DOMAINS.items()
    assert {(domain, op.op_type) for domain, rows in ops for op in rows} == expected
    assert "com.microsoft" not in catalog.FOREIGN_DOMAINS


def test_op_of_another_packages_attention_has_the_inputs_of_its_signature() -> None:
    for op in itertools.chain(*catalog.FOREIGN_DOMAINS.values()):
        if op.op_type in table.ATTENTION_SIGNATURES:
            assert op.inputs == tuple(table.ATTENTION_SIGNATURES[op.op_type].inputs)


def test_codes_of_grid_sampler_are_those_of_its_dialect() -> None:
    pytest.importorskip("numba")
    from ort_gridsample.custom_ops.compiled_ops import foreign
    from ort_gridsample.kernels.tap_plans import PADDING_CODES, TAPS

    for attribute, indices, names in (
        ("mode", foreign._MODES, list(TAPS)),
        ("padding_mode", foreign._PADDINGS, list(PADDING_CODES)),
    ):
        for dialect in table.OPENMMLAB:
            codes = dialect.attributes[attribute].values
            assert {names[index]: code for code, index in enumerate(indices)} == codes
