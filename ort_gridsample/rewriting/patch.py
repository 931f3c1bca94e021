"""Rewriting the nodes of a model to a target."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import onnx

from ..detection.find import find
from ..detection.match import Match
from ..detection.records import NodeRecord
from ..dialects import table
from ..dialects.table import COMPILED, DOMAIN, PLUGINS, SET_ASIDE
from ..errors import GridSampleError
from ..functions import validation
from ..graph.files import explaining_invalid
from ..graph.scope import Names, Scope, function_key, opset_of, scopes
from ..graph.use_def import UseDef, dead, drop_unread
from ..inference.types import Probe, forget_guesses
from ..opsets.convert import convert_opset, unconvertible
from ..opsets.inlining import import_used, inline
from .expansion import BEFORE_GRID_SAMPLE, expanded
from .float16 import keep_coordinates
from .targets import FUNCTIONS_DOMAIN, Replacement, Target
from .targets.attention import TensorRTPlugins
from .targets.compiled_op import CompiledOp
from .targets.python_op import PythonOp
from .targets.runtimes import ANY, RUNTIMES, Runtime
from .targets.spelled import Spelled
from .unfusing import unfused

#: The target of 4-D GridSamples.
TWO_AXES = "ai.onnx-2d"

Selection = Literal["all", "unsupported"] | Callable[[NodeRecord], bool]
#: The records of the nodes that a patch replaced, and of those that stay.
Patched = tuple[list[NodeRecord], list[NodeRecord]]


def targets() -> list[str]:
    """The names that :func:`ort_gridsample.patch_model` takes as ``target``."""
    spelled = dict.fromkeys(dialect.name for dialect in reversed(table.dialects()) if not dialect.reads_only)
    return [DOMAIN, "ai.onnx", TWO_AXES, "primitives", *spelled, PLUGINS.name]


def patch_to(
    model: onnx.ModelProto, nodes: Selection, target: str, functions: bool, probe: Probe, opset: int | None,
    for_runtime: str | None,
) -> Patched:  # fmt: skip
    """Do as :func:`ort_gridsample.patch_model` to ``model`` itself; as :func:`patch_in_place`."""
    if target not in targets():
        raise GridSampleError("patch_model", "target", repr(target), validation.listed(targets()))
    check_selection("patch_model", nodes)
    newest = onnx.defs.onnx_opset_version()
    if opset is not None and (not isinstance(opset, int) or not 1 <= opset <= newest):
        raise GridSampleError("patch_model", "opset", repr(opset), f"a number from 1 to {newest}")
    if for_runtime is not None and target != "primitives":
        both = f"{for_runtime!r} with target {target!r}"
        raise GridSampleError("patch_model", "for_runtime", both, "target 'primitives'")
    if for_runtime not in (None, *RUNTIMES):
        expected = f"{validation.listed(RUNTIMES)}; others run the primitives as they are"
        raise GridSampleError("patch_model", "for_runtime", repr(for_runtime), expected)
    runtime = RUNTIMES[for_runtime] if for_runtime else ANY
    last = runtime.opset  # the newest that may be written where none is asked for
    if target == TWO_AXES:
        from .targets.two_axes import FIRST_OPSET, LAST_OPSET

        last = LAST_OPSET
        if opset is not None and not FIRST_OPSET <= opset <= last:
            expected = f"a number from {FIRST_OPSET} to {last} with target {TWO_AXES!r}"
            raise GridSampleError("patch_model", "opset", repr(opset), expected)
    if opset is None and last is not None and opset_of(model) > last:
        opset = last
    to = _target(target, functions, model, opset, runtime)
    with explaining_invalid(model):
        patched = patch_in_place(model, to, nodes, probe, opset)
        if runtime.coordinates is not None:
            keep_coordinates(model, probe)
        return patched


def check_selection(where: str, nodes: object) -> None:
    """Check what says which nodes to patch."""
    if not callable(nodes) and nodes not in ("all", "unsupported"):
        raise GridSampleError(where, "nodes", repr(nodes), "'all', 'unsupported' or a function of a NodeRecord")


def patch_in_place(
    model: onnx.ModelProto, target: Target, nodes: Selection = "all", probe: Probe | None = None,
    opset: int | None = None, found: list[Scope] | None = None,
) -> Patched:  # fmt: skip
    """Write the ``nodes`` of ``model`` as ``target`` does: the records of what it replaced, and of what stays.

    ``probe`` is asked whether onnxruntime runs a node where ``nodes`` depend on it, and for types that onnx does not
    know. ``found`` are the scopes of ``model``, where they are known; afterwards as well.
    """
    found = scopes(model) if found is None else found
    standard, fused = Spelled("ai.onnx", strict=opset is not None), target.fuses or callable(nodes)
    if (whole := unfused(model, found)) is not model:
        model.CopyFrom(whole)
        found[:] = scopes(model, found[0].weights)
    while True:
        matches = find(
            model, found, probe, nodes != "all", decomposed=target.reads_decomposed, fused=fused, attention=target.fuses
        )
        wholes = [m for m in matches if m.is_whole and target.expands(m) and _is_selected(m, nodes, standard)]
        selected = dict.fromkeys(wholes, target) or {
            m: to
            for m in matches
            if (not m.is_whole or target.takes_whole(m)) and (to := target.of(m)) and _is_selected(m, nodes, standard)
        }
        left = [match for match in matches if match not in selected]
        aside = [match for match in left if match.is_set_aside and not wholes]
        for match in (*selected, *aside):
            if match.record.error is not None:
                raise match.record.error
        in_functions = ((m, to, m.scope.function) for m, to in selected.items() if m.scope.function is not None)
        if functions := {function_key(m.scope.function)[:2] for m in wholes if m.scope.function and _differs(m)}:
            inline(model, functions)
        elif wholes:
            names = Names(model, found)
            _rewrite(found, {match: expanded(match, names) for match in wholes})
            import_used(model, {BEFORE_GRID_SAMPLE: 1})
        elif functions := {function_key(function)[:2] for m, to, function in in_functions if to.needs_inlining(m)}:
            inline(model, functions)  # of which one body cannot serve all calls
        elif not _convert(model, selected, opset):
            break
        found[:] = scopes(model, found[0].weights)
    if written := selected | dict.fromkeys(aside, standard):
        for match, to in written.items() if opset is not None else ():
            if (least := to.least_opset(match)) > match.scope.opsets.get("", 0):
                raise GridSampleError(match.record.where, "opset", str(opset), f"at least {least}")
        names = Names(model, found)
        if before := {name for match in selected for node in match.before for name in node.output}:
            names.take_all(before)
        replacements = {match: to.replace(match, names) for match, to in written.items()}
        forget_guesses(model, found, _declared_near(found, replacements))
        _rewrite(found, replacements)
        there = {function_key(function) for function in model.functions}
        if called := {function_key(each): each for to in replacements.values() for each in to.functions}:
            model.ir_version = max(model.ir_version, 8)  # the first with functions
            model.functions.extend(function for key, function in called.items() if key not in there)
        versions = {d.domain: d.version for d in table.dialects() if d.domain}  # that a replacement may be in
        versions |= {DOMAIN: table.VERSION, FUNCTIONS_DOMAIN: 1}
        versions |= {domain: version for domain, version in found[0].opsets.items() if domain == ""}
        import_used(model, versions, {SET_ASIDE, *(match.record.domain for match in selected)}, found)
    return [m.record for m in selected], [m.record for m in left]


def _target(name: str, functions: bool, model: onnx.ModelProto, opset: int | None, runtime: Runtime) -> Target:
    if name in ("primitives", TWO_AXES):
        from .targets.lowered import Primitives, TwoAxes  # here, as few need it and importing it takes a while

        kind = TwoAxes if name == TWO_AXES else Primitives
        return kind(functions, model.functions, runtime)
    own = {DOMAIN: PythonOp, COMPILED: CompiledOp, PLUGINS.name: TensorRTPlugins}.get(name)
    return Spelled(name, strict=opset is not None) if own is None else own()


def bind_threads(found: Iterable[Scope], num_threads: int) -> bool:
    """Let the ops in ``found`` use ``num_threads`` threads, 0 for the process' default; whether that changed them."""
    ops = (node for scope in found if DOMAIN in scope.domains for node in scope.nodes if node.domain == DOMAIN)
    others = [a for op in ops for a in op.attribute if a.name == "num_threads" and a.i != num_threads]
    for attribute in others:
        attribute.i = num_threads
    return bool(others)


def _is_selected(match: Match, nodes: Selection, standard: Target) -> bool:
    if callable(nodes):
        return bool(nodes(match.record))
    if nodes == "all" or not match.record.native:
        return True
    # onnxruntime runs some that their opset does not allow; nobody writes them.
    return match.is_set_aside and standard.least_opset(match) > match.record.opset


def _differs(match: Match) -> bool:
    """Whether the calls of a function differ in the types or the attributes of a node that stands for several."""
    is_foreign = match.contract is not None or match.record.dialect.plane_scale > 0
    return is_foreign and (match.record.passes_on or any(len(types) > 1 for types in match.record.types.values()))


def _convert(model: onnx.ModelProto, selected: Mapping[Match, Target], opset: int | None) -> bool:
    """Convert the model to ``opset``, or where that is None to what the replacements need; whether that was to do."""
    before = opset_of(model)
    if opset is None:
        old = [(m, least) for m, to in selected.items() if (least := to.least_opset(m)) > m.scope.opsets.get("", 0)]
        if not old:
            return False
        match, version = max(old, key=lambda pair: pair[1])
    elif all(scope.opsets.get("", opset) == opset for scope in scopes(model)):
        return False
    else:
        version = opset
    try:
        convert_opset(model, version)
    except GridSampleError:
        raise
    except Exception as error:
        place, words = unconvertible(model, version) if opset else (match.record.where, " ".join(str(error).split()))
        expected = f"one that it can be converted to from {before}" if opset else f"at least {version}"
        expected += f", and onnx's version converter says: {words}"
        raise GridSampleError(place, "opset", str(opset or before), expected) from None
    return True


def _declared_near(found: Sequence[Scope], replacements: Mapping[Match, Replacement]) -> dict[int, set[str]]:
    """The values of each scope, by its id, whose declared shapes onnxruntime may take for those of a run.

    They are what leads to the replaced nodes, and what is made from their outputs.
    """
    if not any(scope.container.value_info for scope in found):
        return {}
    if len(found) > 1:  # values pass in and out of graphs and functions
        return {id(scope): {value.name for value in scope.container.value_info} for scope in found}
    (main,) = found
    made = {match.record.output for match in replacements}
    read = {name for match in replacements for name in main.inputs[match.index]}
    edges = [*zip(main.inputs, main.outputs, strict=True)]
    for inputs, outputs in edges:
        if not made.isdisjoint(inputs):
            made.update(outputs)
    for inputs, outputs in reversed(edges):
        if not read.isdisjoint(outputs):
            read.update(inputs)
    return {id(main): made | read}


def _rewrite(found: Sequence[Scope], replacements: Mapping[Match, Replacement]) -> None:
    """Put the replacements where their matches and the helpers of these are."""
    by_scope = defaultdict[int, list[Match]](list)
    for match in replacements:
        by_scope[id(match.scope)].append(match)
    for scope in reversed(found):  # inner graphs first: a list of nodes that was rewritten holds copies
        if not (here := by_scope[id(scope)]):
            continue
        replaced = {m.index: [*m.before, *replacements[m].nodes] for m in here}
        dropped = {index for match in here for index in match.helpers}
        parts = {index for match in here for index in (*match.part, *replacements[match].fused)}
        read = {name for nodes in replaced.values() for node in nodes for name in node.input}
        dropped |= dead(UseDef(scope), {*replaced, *dropped}, read, parts)
        gone = {*dropped, *replaced}
        fed = {name for index in parts & gone for name in scope.inputs[index]} - read
        unread = {name for name in fed if scope.readers[name] <= gone}
        scope.replace({**dict.fromkeys(dropped, ()), **replaced})
        drop_unread(scope, unread)
