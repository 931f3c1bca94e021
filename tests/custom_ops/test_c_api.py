"""The offsets of onnxruntime's C API, compared with its header."""

from collections import defaultdict
from pathlib import Path

import pytest

from ort_gridsample import versions
from ort_gridsample.custom_ops.compiled_ops import c_api
from ort_gridsample.custom_ops.provider import ep_api

WORD = 8  # bytes of a pointer
#: As data/read_c_api_header.py printed them.
DECLARATIONS = Path(__file__).parents[1] / "data" / "onnxruntime_c_api.txt"
#: The structs for execution providers, of 1.24 and of 1.27, whose header was the newest at hand.
EP_DECLARATIONS = DECLARATIONS.with_name("onnxruntime_ep_c_api.txt")


def declarations(path: Path) -> dict[str, list[str]]:
    """Struct and release, such as ``OrtApi 1.17`` -> the names of its members, in order."""
    members = defaultdict[str, list[str]](list)
    section = ""
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        else:
            members[section].append(line)
    return members


MEMBERS = declarations(DECLARATIONS)
EP_MEMBERS = declarations(EP_DECLARATIONS)
EP_RELEASES = "1.24", "1.27"
OLDEST = versions.OLDEST["onnxruntime"]
NEWEST = "1.32"


@pytest.mark.parametrize("release", [OLDEST, NEWEST])
@pytest.mark.parametrize(("name", "offset"), c_api.FUNCTION_OFFSETS.items())
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
        older = MEMBERS[f"{struct} {OLDEST}"]
        newer = MEMBERS[f"{struct} {NEWEST}"]
        assert newer[: len(older)] == older


# --- Execution providers ---


@pytest.mark.parametrize("release", EP_RELEASES)
@pytest.mark.parametrize(("name", "offset"), ep_api.EP_API_OFFSETS.items())
def test_ep_function_offset_is_the_headers(name: str, offset: int, release: str) -> None:
    assert EP_MEMBERS[f"OrtEpApi {release}"][offset // WORD] == name
    assert offset % WORD == 0


@pytest.mark.parametrize(("name", "offset"), ep_api.PROVIDER_FUNCTION_OFFSETS.items())
def test_function_for_providers_is_in_the_table_of_1_24(name: str, offset: int) -> None:
    members = MEMBERS[f"OrtApi {NEWEST}"]
    first_of_1_24 = members.index("KernelInfo_GetOperatorDomain")
    assert members[offset // WORD] == name
    assert offset // WORD < first_of_1_24


@pytest.mark.parametrize("release", EP_RELEASES)
@pytest.mark.parametrize(
    ("struct", "fields"), [("OrtEpFactory", ep_api.FACTORY_FIELDS), ("OrtEp", ep_api.EP_FIELDS)]
)
def test_ep_fields_are_the_headers(struct: str, fields: str, release: str) -> None:
    first, *functions = fields.split()
    assert first == "version"
    assert EP_MEMBERS[f"{struct} {release}"][1 : len(functions) + 1] == functions


def test_ep_fields_are_all_of_the_version_that_is_set() -> None:
    for struct, fields in (("OrtEpFactory", ep_api.FACTORY_FIELDS), ("OrtEp", ep_api.EP_FIELDS)):
        assert len(fields.split()) == len(EP_MEMBERS[f"{struct} {ep_api.OLDEST}"])
    assert int(ep_api.OLDEST.split(".")[1]) == ep_api.PROVIDER_API_VERSION


@pytest.mark.parametrize("release", EP_RELEASES)
def test_kernel_fields_are_the_headers(release: str) -> None:
    """The version and the flags are 32 bits each, so they share a field."""
    _, *functions = ep_api.KERNEL_FIELDS.split()
    assert EP_MEMBERS[f"OrtKernelImpl {release}"] == ["ort_version_supported", "flags", *functions]


@pytest.mark.parametrize("release", EP_RELEASES)
def test_compute_info_fields_are_the_headers(release: str) -> None:
    _, *functions = ep_api.COMPUTE_INFO_FIELDS.split()
    assert EP_MEMBERS[f"OrtNodeComputeInfo {release}"] == ["ort_version_supported", *functions]


def test_every_field_of_the_provider_has_a_function() -> None:
    pytest.importorskip("numba")
    from ort_gridsample.custom_ops.provider import constant_functions, factory_image, fused_nodes

    for fields, functions in (
        (ep_api.FACTORY_FIELDS, factory_image.FACTORY_FUNCTIONS),
        (ep_api.EP_FIELDS, factory_image.EP_FUNCTIONS),
        (ep_api.KERNEL_FIELDS, factory_image.KERNEL_FUNCTIONS),
        (
            ep_api.COMPUTE_INFO_FIELDS,
            fused_nodes.compute_info_functions(constant_functions.return_nothing),
        ),
    ):
        assert ["version", *functions] == fields.split()


def test_ep_structs_only_grow_at_their_ends() -> None:
    for struct in ("OrtEpFactory", "OrtEp", "OrtKernelImpl", "OrtEpApi"):
        older, newer = (EP_MEMBERS[f"{struct} {release}"] for release in EP_RELEASES)
        assert newer[: len(older)] == older
