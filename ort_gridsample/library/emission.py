"""Compiled functions as objects that a linker takes, for any machine: what a process does that builds a library's part.

Numba optimises what it compiles for its own process. Here its target is made to be another, before it compiles
anything; each function and all that it calls becomes an object, of which the function alone can be seen.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numba import types
from numba.core import codegen
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from ..custom_ops.compiled_ops.catalog import ANSWERS, OPS, fields
from ..custom_ops.compiled_ops.image import Image
from ..custom_ops.compiled_ops.structs import ENTRY, LIBRARY, OP, VARIANT
from ..kernels.compilation import KernelSpec
from .entry import answer_for, register

#: What Numba refers to where an exception is raised or counted, which no function here does. One that calls the helper
#: of ``reshape`` is not linked: a library has none.
_NEVER_CALLED = re.compile(r"(?!numba_attempt_nocopy_reshape)((NRT|numba|Py|_Py)_\w+|numba_\w+)")


class _Library(codegen.AOTCodeLibrary):
    def get_pointer_to_function(self, name: str) -> int:
        """No function of another machine has an address; that of this one is never called."""
        return 1


class _Codegen(codegen.AOTCPUCodegen):
    """Numba's way to LLVM, for the processor ``cpu`` of the system ``triple``."""

    _library_class = _Library
    _loopvect, _opt_level = False, 0  # of the first of two passes, as Numba has them

    def __init__(self, triple: str, cpu: str) -> None:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        llvm.initialize_native_asmparser()  # for the one instruction of an x86-64 library
        self._triple = triple
        super().__init__("library", cpu)

    def _init(self, llvm_module: Any) -> None:
        self._tm_features = ""
        options = {"cpu": self._cpu_name, "opt": 3, "reloc": "pic", "codemodel": "small"}
        self._tm = llvm.Target.from_triple(self._triple).create_target_machine(**options)
        self._target_data = self._tm.target_data
        self._data_layout = str(self._target_data)

    def _create_empty_module(self, name: str) -> Any:
        module = super()._create_empty_module(name)
        module.triple = self._triple
        return module

    def set_env(self, env_name: str, env: Any) -> None:
        pass


class Emitter:
    """What compiles for the processor ``cpu`` of the system ``triple``, from its making on all that Numba compiles.

    Functions are named after the level of a processor.
    """

    def __init__(self, triple: str, cpu: str, level: int) -> None:
        self._context = cpu_target.target_context
        self._codegen = self._context._internal_codegen = _Codegen(triple, cpu)
        self._triple, self._level = triple, level

    def name(self, part: KernelSpec) -> str:
        """The name of the function of a ``part`` in its object; of a name, which is of other data, this."""
        make, *kinds = part
        if isinstance(make, str):
            return make
        module = make.__module__.rpartition(".")[2]
        return "_".join(["ort_gridsample", f"v{self._level}", module, make.__name__, *kinds])

    def function(self, part: KernelSpec) -> bytes:
        """The object of the function of this ``part``."""
        make, *kinds = part
        made: Callable[..., int] = make(*kinds) if kinds else make
        words = tuple([types.int64] * made.__code__.co_argcount)
        with global_compiler_lock:
            compiled = CFunc(made, (words, types.int64), {}, {"error_model": "numpy"})._compile_uncached()
            module = compiled.library._get_module_for_linking().clone()
        function = module.get_function(compiled.fndesc.llvm_cfunc_wrapper_name)
        function.name, function.linkage, function.visibility = self.name(part), "external", "hidden"
        return self._object("", module, self.name(part))

    def data(self, name: str, image: Image, text: str = "") -> bytes:
        """The object of an ``image``: data of this name; and of a ``text`` behind it."""
        functions = {at: self.name(part) for at, part in image.functions.items()}
        words = dict(enumerate(np.frombuffer(image.data, "<i8").astype(str)))
        words |= {at // 8: f"ptrtoint (ptr @{function} to i64)" for at, function in functions.items()}
        inside = f"ptrtoint (ptr getelementptr (i8, ptr @{name}, i64 %d) to i64)"
        words |= {at // 8: inside % place for at, place in image.places.items()}
        listed = [f"declare hidden i64 @{function}()" for function in dict.fromkeys(functions.values())]
        kinds, values = ", ".join(["i64"] * len(words)), ", ".join(f"i64 {word}" for word in words.values())
        listed += [f"@{name} = hidden global <{{{kinds}}}> <{{{values}}}>, align 64", text]
        return self._object("\n".join(listed))

    def entry(self, variants: Sequence[str], sentences: Sequence[str]) -> bytes:
        """The object of a library's own function: which registers the ops of one of the ``variants``, data by name.

        The ``sentences`` are those of an ENTRY.
        """
        image = Image()
        head, rows = image.put(ENTRY, {}), image.row([(name,) for name in variants])
        texts = dict(zip(("no_variant", "too_old"), (image.text(each.encode()) for each in sentences), strict=True))
        image.fill(head, ENTRY, {"count": len(variants), "variants": rows, **texts})
        inner, exported = self.name((register,)), "dllexport " if "windows" in self._triple else ""
        text = (
            f"declare hidden i64 @{inner}(i64, i64, i64)\n"
            f"define {exported}i64 @RegisterCustomOps(i64 %options, i64 %base) {{\n"
            f"%entry = ptrtoint ptr @ort_gridsample_entry to i64\n"
            f"%status = call i64 @{inner}(i64 %options, i64 %base, i64 %entry)\nret i64 %status\n}}"
        )
        return self.data("ort_gridsample_entry", image, text)

    def _object(self, text: str, module: Any = None, name: str = "") -> bytes:
        """The object of a ``text``, and of a ``module`` of which nothing else than ``name`` can be seen."""
        head = f'target triple = "{self._triple}"\ntarget datalayout = "{self._codegen._data_layout}"\n'
        made = llvm.parse_assembly(head + text)
        if module is not None:
            made.link_in(module)
            for found in (*made.functions, *made.global_variables):
                if not found.is_declaration and found.name != name:
                    found.linkage = "internal"
            for each in [found for found in made.functions if found.is_declaration and _NEVER_CALLED.match(found.name)]:
                name, kind = each.name, re.sub(r" #\d+", "", str(each)).strip()
                made.link_in(llvm.parse_assembly(f"{head}{kind.replace('declare', 'define', 1)} {{ unreachable }}"))
                made.get_function(name).linkage = "internal"
            passes = llvm.create_pass_builder(self._codegen._tm, llvm.create_pipeline_tuning_options(speed_level=3))
            passes.getModulePassManager().run(made, passes)
        made.verify()
        return self._codegen._tm.emit_object(made)


def variant(wanted: Mapping[str, Sequence[str]] | None, level: int) -> Image:
    """The image of a library's ops, as far as ``wanted``, for one level of processors; it begins with its VARIANT."""
    image = Image()
    head, library = image.put(VARIANT, {}), image.put(LIBRARY, {})
    answers, rows = {name: (answer_for, name) for name in ANSWERS}, []
    for op in OPS:
        kernels = op.load()
        named = {
            "library": library,
            "sentences": image.texts(kernels.sentences),
            "name": image.text(op.op_type.encode()),
        }
        common = {**named, **answers, **kernels.functions}
        for each in op.types:
            record, states = kernels.states(*each)
            row = [image.put(record, state) if op.serves(each, n, wanted) else 0 for n, state in enumerate(states)]
            described = image.text(op.described(each).encode())
            rows.append({**common, **fields(op, each), "states": image.row(row), "described": described})
    ops = image.put(OP, *rows)
    image.fill(head, VARIANT, {"level": level, "ops": ops, "count": len(rows), "library": library})
    return image


def main(task: str) -> None:
    """Write the objects of a ``task``, the JSON of what :mod:`.building` says, into its folder."""
    asked = json.loads(task)
    emitter, folder = Emitter(asked["triple"], asked["cpu"], asked["level"]), Path(asked["folder"])
    if asked["variants"]:
        (folder / "entry.o").write_bytes(emitter.entry(asked["variants"], asked["sentences"]))
        parts: Sequence[KernelSpec] = [(register,)]
    else:
        image = variant(asked["wanted"], asked["level"])
        parts = [*dict.fromkeys(image.functions.values())][asked["share"] :: asked["shares"]]
        if asked["share"] == 0:
            name = f"ort_gridsample_v{asked['level']}"
            (folder / f"{name}.o").write_bytes(emitter.data(name, image))
    for part in parts:
        (folder / f"{emitter.name(part)}.o").write_bytes(emitter.function(part))
