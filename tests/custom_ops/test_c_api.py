"""The table of onnxruntime's C API, compared with its headers, and the callers that it makes."""

import ctypes
from collections import defaultdict
from pathlib import Path

import onnxruntime
import pytest

from ort_gridsample import versions
from ort_gridsample.custom_ops.compiled_ops import c_api
from ort_gridsample.custom_ops.provider import ep_api

WORD = 8  # bytes of a pointer
#: As data/read_c_api_header.py printed them.
DECLARATIONS = Path(__file__).parents[1] / "data" / "onnxruntime_c_api.txt"
#: The structs for execution providers, of 1.24 and of 1.27, whose header was the newest at hand.
EP_DECLARATIONS = DECLARATIONS.with_name("onnxruntime_ep_c_api.txt")
#: The function tables of 1.29, with numbers of arguments.
FUNCTION_DECLARATIONS = DECLARATIONS.with_name("onnxruntime_c_api_functions.txt")


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
ALL_MEMBERS = MEMBERS | EP_MEMBERS
#: A struct and the name of a function -> its number of arguments, and the release that introduced
#: it if the header states that.
HEADER_FUNCTIONS = {
    (section.split()[0], words[0]): words[1:]
    for section, lines in declarations(FUNCTION_DECLARATIONS).items()
    for words in map(str.split, lines)
}


FUNCTIONS = pytest.mark.parametrize("function", c_api.FUNCTIONS.values(), ids=c_api.FUNCTIONS)


@FUNCTIONS
def test_function_offset_is_the_headers(function: c_api.Function) -> None:
    index, remainder = divmod(function.offset, WORD)
    assert remainder == 0
    releases = {"OrtApi": (OLDEST, NEWEST), "OrtEpApi": EP_RELEASES}[function.struct]
    for release in releases:
        if int(release.split(".")[1]) >= function.since:
            assert ALL_MEMBERS[f"{function.struct} {release}"][index] == function.name


@FUNCTIONS
def test_number_of_arguments_is_the_headers(function: c_api.Function) -> None:
    n_arguments, *_ = HEADER_FUNCTIONS[function.struct, function.name]
    assert function.n_arguments == int(n_arguments)


@FUNCTIONS
def test_first_release_of_function_is_the_headers(function: c_api.Function) -> None:
    """Before 1.14, the header does not state it."""
    _, *stated = HEADER_FUNCTIONS[function.struct, function.name]
    oldest = {"OrtApi": c_api.VERSION, "OrtEpApi": ep_api.PROVIDER_API_VERSION}[function.struct]
    since = max([c_api.VERSION, *(int(release.split(".")[1]) for release in stated)])
    assert function.since == (since if stated else oldest)
    is_old = function.name in ALL_MEMBERS[f"OrtApi {OLDEST}"]
    assert is_old == (function.since == c_api.VERSION)


def test_only_providers_call_functions_that_the_oldest_release_lacks() -> None:
    """A custom op calls :data:`.c_api.SHAPE_REFERENCE` only if it exists."""
    newer = {name for name, function in c_api.FUNCTIONS.items() if function.since > c_api.VERSION}
    assert c_api.SHAPE_REFERENCE in newer
    folder = Path(c_api.__file__).parent
    files = [*folder.glob("*.py"), *(folder.parents[1] / "library").glob("*.py")]
    texts = [file.read_text() for file in files if file.name != "c_api.py"]
    assert not [name for name in newer for text in texts if f'"{name}"' in text]


def test_no_function_is_newer_than_the_oldest_release_with_providers() -> None:
    assert max(row.since for row in c_api.FUNCTIONS.values()) <= ep_api.PROVIDER_API_VERSION


@pytest.mark.parametrize(
    ("release", "exists"),
    [("1.17.0", False), ("1.24.0.dev2025", False), ("1.24.4", False), ("1.25.0", True)],
)
def test_function_exists_from_the_release_after_its_first_one(
    release: str, exists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A development build of the first release may lack it. In Python and in compiled code."""
    numba = pytest.importorskip("numba")
    from ort_gridsample.custom_ops.compiled_ops import api_functions

    index = c_api.FUNCTIONS[c_api.SHAPE_REFERENCE].offset // WORD
    table = (c_api.word * (index + 1))()
    table[index] = 7
    api = ctypes.addressof(table)
    monkeypatch.setattr(onnxruntime, "__version__", release)
    compiled = numba.njit(lambda api, minor: api_functions.shape_reference(api, minor))
    results = c_api.shape_reference(api), compiled(api, int(release.split(".")[1]))
    assert results == ((7, 7) if exists else (0, 0))


def test_call_without_an_argument_raises() -> None:
    table = (c_api.word * 1000)()
    with pytest.raises(TypeError, match="argument"):
        c_api.call(ctypes.addressof(table), "SetDimensions", 1, 2)


@pytest.mark.parametrize("n_arguments", [2, 4])
def test_compiled_call_with_another_number_of_arguments_does_not_compile(n_arguments: int) -> None:
    numba = pytest.importorskip("numba")
    from ort_gridsample.custom_ops.compiled_ops.api_functions import api_function

    set_dimensions = api_function("SetDimensions")
    arguments = (0,) * n_arguments
    compiled = numba.njit(lambda api: set_dimensions(api, arguments))
    message = f"a C function of 3 arguments is called with {n_arguments}"
    with pytest.raises(numba.TypingError, match=message):
        compiled(0)


@pytest.mark.parametrize("release", [OLDEST, NEWEST])
def test_custom_op_fields_are_the_headers(release: str) -> None:
    fields = c_api.FIELDS.split()
    assert MEMBERS[f"OrtCustomOp {release}"][: len(fields)] == fields


def test_custom_op_fields_are_all_of_the_version_that_is_set() -> None:
    assert c_api.FIELDS.split() == MEMBERS[f"OrtCustomOp {OLDEST}"]
    assert int(OLDEST.split(".")[1]) == c_api.VERSION


def test_table_only_grows_at_its_end() -> None:
    for struct in ("OrtApi", "OrtCustomOp"):
        older = MEMBERS[f"{struct} {OLDEST}"]
        newer = MEMBERS[f"{struct} {NEWEST}"]
        assert newer[: len(older)] == older


# --- Execution providers ---


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
