"""A shared library whose only function, ``RegisterCustomOps``, jumps to a function of this process.

ONNX Runtime takes custom ops from shared libraries: ``SessionOptions.register_custom_ops_library(path)`` opens one and
calls its ``RegisterCustomOps(OrtSessionOptions*, const OrtApiBase*)``. The compiled ops exist in memory only, so this
module makes a library for them. On Linux it is an ELF file of two pages, written by :func:`elf_library`. On other
systems a linker makes it once (:func:`linked_library`), and it is kept on disk.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import struct
import tempfile
from contextlib import suppress
from pathlib import Path

from ...errors import GridSampleError
from ...graph.files import atomic_write
from ...kernels import target
from ...kernels.cache_folder import cache_folder
from . import linking

ENTRY_POINT = "RegisterCustomOps"


class NoTrampolineError(Exception):
    """The library cannot be made, or this system refuses to load it. The text says why, and what helps."""


def load(address: int) -> tuple[ctypes.CDLL, str]:
    """Make and load the library whose function jumps to ``address``; the library and its path.

    Raises:
        NoTrampolineError: the library cannot be made or loaded.
    """
    if target.system == "linux" and target.machine in _JUMPS:
        return _load_written(elf_library(address, target.machine))
    return _load_linked(address)


# --- An ELF file ---

#: The processors: ELF's number of each, and the instructions that jump to the address that is inserted at ``{}``.
#: x86-64: movabs rax, address; jmp rax. AArch64: ldr x16, .+8; br x16; address.
_JUMPS = {
    "x86_64": (62, b"\x48\xb8", b"\xff\xe0"),
    "aarch64": (183, bytes.fromhex("50000058 00021fd6"), b""),
}
#: The largest page of any Linux on these processors. Segments with different permissions must not share a page.
_PAGE = 1 << 16
#: Where the dynamic section lies in the file. The page is mapped twice, the second time one page further and writable.
_DYNAMIC_OFFSET = 0x1000

_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_EXECUTE, _WRITE, _READ = 1, 2, 4
_DT_NULL, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT = 0, 4, 5, 6, 10, 11
_GLOBAL_FUNCTION = 1 << 4 | 2
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_ENTRY = struct.Struct("<QQ")


def elf_library(address: int, machine: str) -> bytes:
    """A 64-bit ELF shared library whose ``RegisterCustomOps`` jumps to ``address``. Source: System V ABI, chapter 5."""
    number, before, after = _JUMPS[machine]
    code = before + struct.pack("<Q", address) + after
    names = b"\0" + ENTRY_POINT.encode() + b"\0"
    hash_table = struct.pack("<5I", 1, 2, 1, 0, 0)  # one bucket, and a chain of the null symbol and ours

    code_at = _HEADER.size + 4 * _SEGMENT.size
    symbols_at = code_at + 32
    names_at = symbols_at + 2 * _SYMBOL.size
    hash_at = names_at + 32
    end = hash_at + len(hash_table)
    dynamic_address = _PAGE + _DYNAMIC_OFFSET

    section = 1  # any section that is not "undefined"
    symbols = bytes(_SYMBOL.size) + _SYMBOL.pack(1, _GLOBAL_FUNCTION, 0, section, code_at, len(code))
    dynamic = b"".join(
        _ENTRY.pack(tag, value)
        for tag, value in (
            (_DT_HASH, hash_at),
            (_DT_SYMTAB, symbols_at),
            (_DT_STRTAB, names_at),
            (_DT_STRSZ, len(names)),
            (_DT_SYMENT, _SYMBOL.size),
            (_DT_NULL, 0),
        )
    )
    identification = b"\x7fELF" + bytes([2, 1, 1])  # 64 bits, little-endian, version 1
    header = _HEADER.pack(
        identification, 3, number, 1, 0, _HEADER.size, 0, 0, _HEADER.size, _SEGMENT.size, 4, 0, 0, 0
    )  # fmt: skip
    size = len(dynamic)
    segments = (
        _SEGMENT.pack(_PT_LOAD, _READ | _EXECUTE, 0, 0, 0, end, end, _PAGE),
        _SEGMENT.pack(
            _PT_LOAD, _READ | _WRITE, _DYNAMIC_OFFSET, dynamic_address, dynamic_address, size, size, _PAGE
        ),
        _SEGMENT.pack(
            _PT_DYNAMIC, _READ | _WRITE, _DYNAMIC_OFFSET, dynamic_address, dynamic_address, size, size, 8
        ),
        _SEGMENT.pack(_PT_GNU_STACK, _READ | _WRITE, 0, 0, 0, 0, 0, 16),
    )  # fmt: skip
    parts = {
        0: header + b"".join(segments),
        code_at: code,
        symbols_at: symbols,
        names_at: names,
        hash_at: hash_table,
        _DYNAMIC_OFFSET: dynamic,
    }
    file = bytearray(_DYNAMIC_OFFSET + size)
    for offset, data in parts.items():
        file[offset : offset + len(data)] = data
    return bytes(file)


def _load_written(content: bytes) -> tuple[ctypes.CDLL, str]:
    """Load a library from memory, or where that is not possible from a temporary file."""
    reasons = []
    for load_from in (_load_from_memory, _load_from_file):
        try:
            return load_from(content)
        except (OSError, AttributeError) as error:  # no memfd_create, no /proc, or no permission to execute
            reasons.append(str(error))
    raise NoTrampolineError(f"this system loads no library from memory or from a temporary file: {'; '.join(reasons)}")


def _load_from_memory(content: bytes) -> tuple[ctypes.CDLL, str]:
    """The file descriptor stays open: a path that another library could get would lead the loader to this one."""
    descriptor = os.memfd_create("ort_gridsample")
    try:
        os.write(descriptor, content)
        path = f"/proc/self/fd/{descriptor}"
        return ctypes.CDLL(path), path
    except BaseException:
        os.close(descriptor)
        raise


def _load_from_file(content: bytes) -> tuple[ctypes.CDLL, str]:
    """The file can go as soon as it is loaded: the loader knows the library by its path from then on."""
    descriptor, path = tempfile.mkstemp(prefix="ort_gridsample", suffix=".so")
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        return ctypes.CDLL(path), path
    finally:
        with suppress(OSError):
            os.unlink(path)


# --- A library that a linker makes ---

_TARGET = "ort_gridsample_target"
_SOURCE = f"""
#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif
typedef void *(*Register)(void *, const void *);
EXPORT Register {_TARGET} = 0;
EXPORT void *{ENTRY_POINT}(void *options, const void *api) {{ return {_TARGET}(options, api); }}
"""


def linked_library(folder: Path) -> Path:
    """The path of the library in ``folder``, linked if it is not there yet. It serves any address.

    Raises:
        GridSampleError: there is no linker.
        RuntimeError: the linker failed.
        OSError: the library cannot be written.
    """
    key = hashlib.sha256(f"{target.system} {target.machine} {_SOURCE}".encode()).hexdigest()[:16]
    path = folder / f"trampoline-{key}{linking.SUFFIXES.get(target.system, '.so')}"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    command = linking.linker(None, "compiled ops")
    if target.system != "win32":
        command.append("-fPIC")
    with tempfile.TemporaryDirectory() as temporary, atomic_write(path) as output:
        source = Path(temporary) / "trampoline.c"
        source.write_text(_SOURCE)
        linking.run([*command, "-o", str(output), str(source)], "linking the registration of compiled ops")
    return path


def _load_linked(address: int) -> tuple[ctypes.CDLL, str]:
    try:
        path = str(linked_library(cache_folder()))
        library = ctypes.CDLL(path)
    except GridSampleError as error:
        raise NoTrampolineError(f"this system needs a linker for it: install {error.expected}") from error
    except (RuntimeError, OSError) as error:
        raise NoTrampolineError(str(error)) from error
    ctypes.c_void_p.in_dll(library, _TARGET).value = address
    return library, path
