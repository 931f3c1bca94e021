"""The offsets of ONNX Runtime's C API, against the declarations of the oldest and the newest supported release."""

from collections import defaultdict
from pathlib import Path

import pytest

from ort_gridsample import versions
from ort_gridsample.custom_ops.compiled_ops import c_api

WORD = 8  # bytes of a pointer
#: As data/read_c_api_header.py printed them.
DECLARATIONS = Path(__file__).parents[1] / "data" / "onnxruntime_c_api.txt"


def declarations() -> dict[str, list[str]]:
    """Struct and release, such as ``OrtApi 1.17`` -> the names of its members, in order."""
    members = defaultdict[str, list[str]](list)
    section = ""
    for line in DECLARATIONS.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        else:
            members[section].append(line)
    return members


MEMBERS = declarations()
OLDEST, NEWEST = versions.OLDEST["onnxruntime"], "1.32"


@pytest.mark.parametrize("release", [OLDEST, NEWEST])
@pytest.mark.parametrize(("name", "offset"), c_api.FUNCTIONS.items())
def test_function_offset_is_the_headers(name: str, offset: int, release: str) -> None:
    assert MEMBERS[f"OrtApi {release}"][offset // WORD] == name
    assert offset % WORD == 0


@pytest.mark.parametrize("release", [OLDEST, NEWEST])
def test_custom_op_fields_are_the_headers(release: str) -> None:
    fields = c_api.FIELDS.split()
    assert MEMBERS[f"OrtCustomOp {release}"][: len(fields)] == fields


def test_custom_op_fields_are_all_of_the_version_that_is_set() -> None:
    assert c_api.FIELDS.split() == MEMBERS[f"OrtCustomOp {OLDEST}"]
    assert int(OLDEST.split(".")[1]) == c_api.VERSION


def test_function_of_newer_releases_has_the_headers_offset() -> None:
    name = "GetTensorElementTypeAndShapeDataReference"
    assert MEMBERS[f"OrtApi {NEWEST}"][c_api.SHAPE_REFERENCE // WORD] == name
    assert name not in MEMBERS[f"OrtApi {OLDEST}"]


def test_table_only_grows_at_its_end() -> None:
    for struct in ("OrtApi", "OrtCustomOp"):
        older, newer = MEMBERS[f"{struct} {OLDEST}"], MEMBERS[f"{struct} {NEWEST}"]
        assert newer[: len(older)] == older
