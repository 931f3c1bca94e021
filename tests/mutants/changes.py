"""Small changes to Python source, one at a time: the slips that a test should notice."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

#: What stands in for what; the first is the nearest to a slip.
COMPARISONS: Mapping[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPERATORS: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.MatMult: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}
_OPPOSITES = (
    ("min", "max"),
    ("minimum", "maximum"),
    ("any", "all"),
    ("floor", "ceil"),
    ("isnan", "isinf"),
    ("logical_and", "logical_or"),
    ("zeros", "ones"),
    ("zeros_like", "ones_like"),
    ("startswith", "endswith"),
)
NAMES = dict(_OPPOSITES) | {second: first for first, second in _OPPOSITES} | {"rint": "floor"}

#: Parts of a node that decide no answer: what a type checker reads, and what a decorator makes of the whole.
UNREAD = ("annotation", "returns", "decorator_list", "type_params")


@dataclass(frozen=True)
class Change:
    """One change to one file.

    Attributes:
        path: the file, relative to the project's root.
        line: where.
        kind: what sort of change.
        before, after: the code around the change.
        start, end: the bytes of the file that are replaced,
        text: and by what.
        lines: lines that run where the changed code does, the nearest first.
        in_function: whether the code runs when a function is called; else when the module is imported.
    """

    path: str
    line: int
    kind: str
    before: str
    after: str
    start: int
    end: int
    text: str
    lines: tuple[range, ...]
    in_function: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.kind}: {self.before} → {self.after}"

    def apply(self, source: bytes) -> bytes:
        """The whole file, changed."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    def is_one(self, source: bytes) -> bool:
        """Whether the changed file is Python, and not the same as before."""
        try:
            changed = ast.parse(self.apply(source))
        except SyntaxError:
            return False
        return ast.dump(changed) != ast.dump(ast.parse(source))


def changes(path: str, source: bytes) -> list[Change]:
    """Every change to the file ``path`` that says ``source``, in the order of the file."""
    tree = ast.parse(source)
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: dict[tuple[int, int, str], Change] = {}
    for place in _places(tree, _Place(tree)):
        for kind, node in _alternatives(place):
            anchor: Any = place.anchor or place.node
            start = starts[anchor.lineno - 1] + anchor.col_offset
            end = starts[anchor.end_lineno - 1] + anchor.end_col_offset
            text = f"({ast.unparse(place.swapped(node))})" if isinstance(anchor, ast.expr) else ast.unparse(node)
            before, after = _difference(ast.unparse(place.node), ast.unparse(node))
            change = Change(
                path, place.node.lineno, kind, before, after, start, end, text, place.lines(), place.in_function
            )
            found.setdefault((start, end, text), change)
    return list(found.values())


@dataclass(frozen=True)
class _Place:
    """A node, and where it is.

    Attributes:
        parent, field, index: what holds the node.
        anchor: the node whose text is replaced where that is not this one: what lies in an f-string has no place of
            its own before Python 3.12.
        statement: the statement around the node.
        body: the lines of the body of the function whose signature the node is in.
        in_function: as in :class:`Change`.
    """

    node: Any
    parent: Any = None
    field: str = ""
    index: int | None = None
    anchor: ast.JoinedStr | None = None
    statement: Any = None
    body: range | None = None
    in_function: bool = False

    def swapped(self, node: ast.AST) -> ast.AST:
        """What the replaced text says with ``node`` in this one's place."""
        if self.anchor is None:
            return node
        self._put(node)
        try:
            return ast.parse(ast.unparse(self.anchor), mode="eval").body
        finally:
            self._put(self.node)

    def _put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node

    def lines(self) -> tuple[range, ...]:
        if self.body is not None:
            return (self.body,)
        own: Any = self.anchor or self.node
        inner = getattr(self.statement, "body", None)
        header = getattr(self.statement, "test", self.statement) if isinstance(inner, list) else self.statement
        return tuple(range(node.lineno, node.end_lineno + 1) for node in (own, header))


def _places(node: Any, place: _Place) -> Iterator[_Place]:
    """The place of every node that is run, in the order of the file."""
    if _decides_nothing(node):
        return
    if isinstance(node, ast.expr | ast.stmt):
        yield place
    for field, value in ast.iter_fields(node):
        if field in UNREAD:
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST):
                yield from _places(child, _below(place, child, field, index))


def _below(place: _Place, child: ast.AST, field: str, index: int | None) -> _Place:
    node = place.node
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return _Place(
        child,
        node,
        field,
        index,
        place.anchor or (node if isinstance(node, ast.JoinedStr) else None),
        child if isinstance(child, ast.stmt) else place.statement,
        range(node.body[0].lineno, node.end_lineno + 1) if is_function and field == "args" else place.body,
        place.in_function or is_function,
    )


def _decides_nothing(node: ast.AST) -> bool:
    match node:
        case ast.If(test=ast.Name("TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            return True
        case ast.If(test=ast.Compare(left=ast.Name("__name__"))):
            return True
        case ast.Assign(targets=[ast.Name("__all__")]):
            return True
    return False


_Alternatives = Iterator[tuple[str, Any]]


def _alternatives(place: _Place) -> _Alternatives:
    for kind in KINDS:
        for node in kind(place.node, place):
            yield kind.__name__.strip("_").replace("_", " "), node


def _with(node: Any, **fields: Any) -> Any:
    changed = copy(node)
    for field, value in fields.items():
        setattr(changed, field, value)
    return changed


def _without(values: list[Any], index: int) -> list[Any]:
    return values[:index] + values[index + 1 :]


def _comparison(node: Any, place: _Place) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            for other in COMPARISONS[type(op)]:
                yield _with(node, ops=[*node.ops[:i], other(), *node.ops[i + 1 :]])


def _and_or(node: Any, place: _Place) -> Iterator[ast.AST]:
    if isinstance(node, ast.BoolOp):
        yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())


def _condition_dropped(node: Any, place: _Place) -> Iterator[ast.AST]:
    if isinstance(node, ast.BoolOp):
        for i in range(len(node.values)):
            rest = _without(node.values, i)
            yield _with(node, values=rest) if len(rest) > 1 else rest[0]
    if _is_condition(place):
        if not isinstance(place.parent, ast.While):  # it would not end
            yield ast.Constant(True)
        if place.field != "ifs":
            yield ast.Constant(False)


def _negation(node: Any, place: _Place) -> Iterator[ast.AST]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif _is_condition(place):
        yield ast.UnaryOp(ast.Not(), node)


def _is_condition(place: _Place) -> bool:
    tests = ast.If | ast.While | ast.IfExp
    return place.field == "ifs" or (place.field == "test" and isinstance(place.parent, tests))


def _sign(node: Any, place: _Place) -> Iterator[ast.AST]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert):
        yield node.operand


def _operator(node: Any, place: _Place) -> Iterator[ast.AST]:
    if isinstance(node, ast.AugAssign):
        yield _with(node, op=OPERATORS[type(node.op)]())
    if isinstance(node, ast.BinOp) and not any(_is_no_number(side) for side in (node.left, node.right)):
        yield _with(node, op=OPERATORS[type(node.op)]())


def _is_no_number(node: ast.expr) -> bool:
    """Text, a sequence, or a type: another operator would fail at once."""
    if isinstance(node, ast.Constant):
        return node.value is None or isinstance(node.value, str | bytes)
    return isinstance(node, ast.JoinedStr | ast.List | ast.ListComp | ast.Tuple | ast.Dict | ast.DictComp)


def _constant(node: Any, place: _Place) -> Iterator[ast.AST]:
    if not isinstance(node, ast.Constant):
        return
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, int | float):
        yield from (ast.Constant(value) for value in (node.value + 1, node.value - 1) if value != node.value)


def _default(node: Any, place: _Place) -> Iterator[ast.AST]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        is_field = place.field == "value" and isinstance(place.parent, ast.AnnAssign) and not place.in_function
        if is_field or place.field in ("defaults", "kw_defaults"):
            yield ast.Constant(node.value + "_")


def _name(node: Any, place: _Place) -> Iterator[ast.AST]:
    if isinstance(node, ast.Name) and node.id in NAMES and isinstance(node.ctx, ast.Load):
        yield _with(node, id=NAMES[node.id])
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield _with(node, attr=NAMES[node.attr])


def _argument_dropped(node: Any, place: _Place) -> Iterator[ast.AST]:
    if isinstance(node, ast.Call):
        for i in range(len(node.keywords)):
            yield _with(node, keywords=_without(node.keywords, i))


def _return_dropped(node: Any, place: _Place) -> Iterator[ast.AST]:
    if isinstance(node, ast.Return) and not (node.value is None or _is_false(node.value)):
        yield ast.Return(ast.Constant(None))


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value  # None counts as no answer, too


def _statement_dropped(node: Any, place: _Place) -> Iterator[ast.AST]:
    match node:
        case ast.AugAssign() | ast.Raise() | ast.Delete() | ast.Break() | ast.Continue() | ast.Expr(ast.Call()):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()


KINDS: tuple[Callable[[Any, _Place], Iterator[ast.AST]], ...] = (
    _comparison,
    _and_or,
    _negation,
    _condition_dropped,
    _sign,
    _operator,
    _constant,
    _default,
    _name,
    _argument_dropped,
    _return_dropped,
    _statement_dropped,
)


def _difference(before: str, after: str, around: int = 40) -> tuple[str, str]:
    """The two without most of what they begin and end with alike, on one line each."""
    before, after = " ".join(before.split()), " ".join(after.split())
    head = _alike(before, after)
    tail = _alike(before[head:][::-1], after[head:][::-1])
    return _cut(before, head, tail, around), _cut(after, head, tail, around)


def _alike(a: str, b: str) -> int:
    """How many characters two texts begin with alike."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _cut(text: str, head: int, tail: int, around: int) -> str:
    start, end = max(0, head - around), len(text) - max(0, tail - around)
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")
