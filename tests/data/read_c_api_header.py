"""Print the members of OrtApi and OrtCustomOp of an ``onnxruntime_c_api.h``, one on each line.

``onnxruntime_c_api.txt`` is the output for the headers of the oldest and the newest supported
release::

    python tests/data/read_c_api_header.py 1.17 include/onnxruntime/core/session/onnxruntime_c_api.h
"""

import re
import sys
from pathlib import Path

COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
MEMBER = re.compile(
    r"ORT_API2_STATUS\(\s*(?P<status>\w+)"
    r"|ORT_API_T\([^,]*,\s*(?P<typed>\w+)"
    r"|ORT_CLASS_RELEASE2?\((?P<released>\w+)\)"
    r"|\(ORT_API_CALL\s*\*\s*(?P<pointer>\w+)\)"
    r"|uint32_t (?P<number>version);"
)


def members(header: str, struct: str) -> list[str]:
    """Return the members of ``struct``, a C struct of numbers and function pointers."""
    begin = header.index(f"struct {struct} {{")
    body = COMMENT.sub("", header[begin : header.index("\n};", begin)])
    return [
        f"Release{match['released']}" if match["released"] else match[match.lastgroup]
        for match in MEMBER.finditer(body)
    ]


if __name__ == "__main__":
    release, path = sys.argv[1:]
    text = Path(path).read_text()
    for name in ("OrtApi", "OrtCustomOp"):
        print(f"[{name} {release}]", *members(text, name), sep="\n")
