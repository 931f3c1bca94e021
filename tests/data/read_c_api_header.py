"""Print the members of C structs of a header of onnxruntime, one on each line.

``onnxruntime_c_api.txt`` is the output for the headers of the oldest and the newest supported
release::

    python tests/data/read_c_api_header.py 1.17 onnxruntime_c_api.h OrtApi OrtCustomOp

``onnxruntime_c_api_functions.txt`` is the output for the headers of 1.29, each member with its
number of arguments, and the release that introduced the member where the header states it::

    python tests/data/read_c_api_header.py --arguments 1.29 onnxruntime_c_api.h OrtApi
    python tests/data/read_c_api_header.py --arguments 1.29 onnxruntime_ep_c_api.h OrtEpApi
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
#: A member up to its list of arguments.
MEMBER = re.compile(
    r"ORT_API2_STATUS\(\s*(?P<status>\w+),?"
    r"|ORT_API_T\([^,]*,\s*(?P<typed>\w+),?"
    r"|ORT_CLASS_RELEASE2?\((?=(?P<released>\w+)\))"
    r"|\(ORT_API_CALL\s*\*\s*(?P<pointer>\w+)\)\("
    r"|uint32_t (?P<number>version);"
)
SINCE = re.compile(r"\\since Version (1\.\d+)")


class Member(NamedTuple):
    """A member of a C struct.

    Attributes:
        name: its name.
        n_arguments: the number of arguments of a function.
        since: the release that introduced it; empty if the header does not state the release.
    """

    name: str
    n_arguments: int
    since: str


def members(header: str, struct: str) -> Iterator[Member]:
    """Yield the members of ``struct``, a C struct of numbers and function pointers."""
    begin = header.index(f"struct {struct} {{")
    body = header[begin : header.index("\n};", begin)]
    code = COMMENT.sub(lambda comment: " " * len(comment[0]), body)
    previous_end = 0
    for match in MEMBER.finditer(code):
        name = match[match.lastgroup or ""]
        since = SINCE.findall(body[previous_end : match.start()])
        yield Member(
            f"Release{name}" if match["released"] else name,
            0 if match["number"] else count_arguments(code[match.end() :]),
            since[-1] if since else "",
        )
        previous_end = match.end()


def count_arguments(code: str) -> int:
    """Count the arguments of C code that begins after the opening parenthesis of its list."""
    depth = 0
    commas = 0
    for position, character in enumerate(code):
        if character == ")" and depth == 0:
            arguments = code[:position].strip()
            return 0 if arguments in ("", "void") else 1 + commas
        depth += {"(": 1, ")": -1}.get(character, 0)
        commas += character == "," and depth == 0
    raise ValueError("the list of arguments does not end")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arguments", action="store_true")
    parser.add_argument("release")
    parser.add_argument("header", type=Path)
    parser.add_argument("structs", nargs="+")
    options = parser.parse_args()
    text = options.header.read_text()
    for struct_name in options.structs:
        print(f"[{struct_name} {options.release}]")
        for member in members(text, struct_name):
            words = [member.name]
            if options.arguments:
                words += [str(member.n_arguments), member.since]
            print(*filter(None, words))
