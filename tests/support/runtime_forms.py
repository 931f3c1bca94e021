"""The runtimes with Gather for which lowered nodes have another form, one for each form."""

from dataclasses import replace

from ort_gridsample.graph.runtimes import ANY, RUNTIMES, Runtime


def _form(runtime: Runtime) -> Runtime:
    """Return a runtime without what does not change the nodes of ``primitives``."""
    common = {name: getattr(ANY, name) for name in ("title", "targets", "facts", "dialects", "why")}
    return replace(runtime, **common)


#: The first name of each form.
RUNTIME_FORMS = [
    name
    for index, (name, runtime) in enumerate(RUNTIMES.items())
    if _form(runtime) != ANY
    and not runtime.lacks("Gather")
    and _form(runtime) not in [_form(other) for other in [*RUNTIMES.values()][:index]]
]
