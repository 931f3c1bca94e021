"""A shared library whose functions jump to functions of this process.

ONNX Runtime accepts custom ops and execution providers from shared libraries only:
``SessionOptions.register_custom_ops_library(path)`` opens one, and calls its function
``RegisterCustomOps(OrtSessionOptions*, const OrtApiBase*)``. The compiled ops exist in memory only,
so this module makes a library for them. On Linux it is an ELF file of two pages, which
:func:`elf_library` writes. On other systems a linker makes it once (:func:`linked_library`), and it
is cached on disk.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import struct
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...errors import GridSampleError
from ...graph.files import atomic_write
from ...kernels import library_trailer, target
from ...kernels.cache_folder import cache_folder, digest
from . import linking

#: The function that ONNX Runtime calls for custom ops.
ENTRY_POINT = "RegisterCustomOps"
#: The functions that ONNX Runtime calls in libraries -> the number of their arguments.
ENTRY_POINTS = {ENTRY_POINT: 2, "CreateEpFactories": 6, "ReleaseEpFactory": 1}


class NoTrampolineError(Exception):
    """The library cannot be made or loaded. The text has the reason and a remedy."""


def load(functions: Mapping[str, int]) -> tuple[ctypes.CDLL, str]:
    """Make and load a library.

    Args:
        functions: names of :data:`ENTRY_POINTS`, and the addresses that they jump to.

    Returns:
        The library and its path.

    Raises:
        NoTrampolineError: the library cannot be made or loaded.
    """
    if target.system == "linux" and target.processor in _JUMPS:
        return _load_written(elf_library(functions, target.processor))
    return _load_linked(functions)


# --- An ELF file ---


class _Jump(NamedTuple):
    """The instructions of a processor that jump to an address.

    Attributes:
        elf_number: ELF's number of the processor.
        before: the bytes before the address.
        after: the bytes after it.
    """

    elf_number: int
    before: bytes
    after: bytes


_JUMPS = {
    # movabs rax, address; jmp rax
    "x86_64": _Jump(elf_number=62, before=b"\x48\xb8", after=b"\xff\xe0"),
    # ldr x16, .+8; br x16; address
    "aarch64": _Jump(elf_number=183, before=bytes.fromhex("50000058 00021fd6"), after=b""),
}
#: The largest page size of Linux on these processors. Segments with different permissions must not
#: share a page.
_PAGE = 1 << 16
#: The offset of the dynamic section in the file. The page is mapped twice, the second time one page
#: further and writable.
_DYNAMIC_OFFSET = 0x1000

# The types and permissions of segments, tags of the dynamic section, and the type of a symbol.
_PT_LOAD = 1
_PT_DYNAMIC = 2
_PT_GNU_STACK = 0x6474E551
_EXECUTE = 1
_WRITE = 2
_READ = 4
_DT_NULL = 0
_DT_HASH = 4
_DT_STRTAB = 5
_DT_SYMTAB = 6
_DT_STRSZ = 10
_DT_SYMENT = 11
_GLOBAL_FUNCTION = 1 << 4 | 2

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_ENTRY = struct.Struct("<QQ")

# The layout of the file: offsets, which are also addresses in the first segment.
_N_SEGMENTS = 4
_CODE_OFFSET = _HEADER.size + _N_SEGMENTS * _SEGMENT.size
#: The bytes between the beginnings of two functions.
_CODE_SIZE = 32
_SYMBOLS_OFFSET = 0x400
_NAMES_OFFSET = 0x600
_HASH_OFFSET = 0x800


def elf_library(functions: Mapping[str, int], processor: str) -> bytes:
    """Return a 64-bit ELF shared library.

    Source: System V ABI, chapter 5.

    Args:
        functions: names of functions, and the addresses that they jump to.
        processor: a key of :data:`_JUMPS`.
    """
    jump = _JUMPS[processor]
    code = b""
    names = b"\0"
    symbols = bytes(_SYMBOL.size)
    for name, address in functions.items():
        instructions = jump.before + struct.pack("<Q", address) + jump.after
        symbols += _symbol(len(names), _CODE_OFFSET + len(code), len(instructions))
        names += name.encode() + b"\0"
        code += instructions.ljust(_CODE_SIZE, b"\0")
    hash_table = _hash_table(len(functions))
    dynamic = _dynamic_section(len(names))
    header = _elf_header(jump.elf_number)
    header += _program_header(_HASH_OFFSET + len(hash_table), len(dynamic))
    contents = {
        0: header,
        _CODE_OFFSET: code,
        _SYMBOLS_OFFSET: symbols,
        _NAMES_OFFSET: names,
        _HASH_OFFSET: hash_table,
        _DYNAMIC_OFFSET: dynamic,
    }
    file = bytearray(_DYNAMIC_OFFSET + len(dynamic))
    for offset, data in contents.items():
        file[offset : offset + len(data)] = data
    return bytes(file)


def _symbol(name_offset: int, start: int, size: int) -> bytes:
    """Return the symbol of a function, given the offsets of its name and of its code."""
    section = 1  # any section that is not "undefined"
    return _SYMBOL.pack(name_offset, _GLOBAL_FUNCTION, 0, section, start, size)


def _dynamic_section(names_size: int) -> bytes:
    """Return the dynamic section: where the tables of the file are."""
    entries = (
        (_DT_HASH, _HASH_OFFSET),
        (_DT_SYMTAB, _SYMBOLS_OFFSET),
        (_DT_STRTAB, _NAMES_OFFSET),
        (_DT_STRSZ, names_size),
        (_DT_SYMENT, _SYMBOL.size),
        (_DT_NULL, 0),
    )
    return b"".join(_ENTRY.pack(tag, value) for tag, value in entries)


def _hash_table(n_symbols: int) -> bytes:
    """Return a hash table with one bucket, whose chain has all symbols and the null symbol."""
    bucket = 1
    following = [*range(2, n_symbols + 1), 0]
    words = [1, n_symbols + 1, bucket, 0, *following]
    return struct.pack(f"<{len(words)}I", *words)


def _elf_header(processor_number: int) -> bytes:
    identification = b"\x7fELF" + bytes([2, 1, 1])  # 64 bits, little-endian, version 1
    return _HEADER.pack(
        identification,
        3,  # the file is a shared library
        processor_number,
        1,  # the version of ELF
        0,  # no entry point
        _HEADER.size,  # the offset of the program header
        0,  # no section header
        0,  # no flags
        _HEADER.size,
        _SEGMENT.size,
        _N_SEGMENTS,
        0,
        0,
        0,
    )


def _program_header(end: int, dynamic_size: int) -> bytes:
    """Return the program header: what the loader maps, and where the dynamic section is.

    Args:
        end: the end of the first segment.
    """
    dynamic_address = _PAGE + _DYNAMIC_OFFSET
    # The offset, the virtual and the physical address, and the sizes in the file and in memory.
    everything = (0, 0, 0, end, end)
    dynamic = (_DYNAMIC_OFFSET, dynamic_address, dynamic_address, dynamic_size, dynamic_size)
    segments = [
        _SEGMENT.pack(_PT_LOAD, _READ | _EXECUTE, *everything, _PAGE),
        _SEGMENT.pack(_PT_LOAD, _READ | _WRITE, *dynamic, _PAGE),
        _SEGMENT.pack(_PT_DYNAMIC, _READ | _WRITE, *dynamic, 8),
        _SEGMENT.pack(_PT_GNU_STACK, _READ | _WRITE, 0, 0, 0, 0, 0, 16),
    ]
    return b"".join(segments)


def _load_written(content: bytes) -> tuple[ctypes.CDLL, str]:
    """Load a library from memory, or else from a temporary file.

    Returns:
        The library and its path.

    Raises:
        NoTrampolineError: the system refuses both.
    """
    reasons = []
    for load_from in (_load_from_memory, _load_from_file):
        try:
            return load_from(content)
        # No memfd_create, no /proc, or no permission to execute.
        except (OSError, AttributeError) as error:
            reasons.append(str(error))
    places = "from memory or from a temporary file"
    raise NoTrampolineError(f"this system loads no library {places}: {'; '.join(reasons)}")


def _load_from_memory(content: bytes) -> tuple[ctypes.CDLL, str]:
    """Load a library from a file in memory.

    The file descriptor stays open. Otherwise another library could get the same path, and the
    loader would return this one for it.
    """
    descriptor = os.memfd_create("ort_gridsample")
    try:
        os.write(descriptor, content)
        path = f"/proc/self/fd/{descriptor}"
        return ctypes.CDLL(path), path
    except BaseException:
        os.close(descriptor)
        raise


def _load_from_file(content: bytes) -> tuple[ctypes.CDLL, str]:
    """Load a library from a temporary file.

    The file is removed at once: from then on, the loader finds the library by its path.
    """
    descriptor, path = tempfile.mkstemp(prefix="ort_gridsample", suffix=".so")
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        return ctypes.CDLL(path), path
    finally:
        with suppress(OSError):
            os.unlink(path)


# --- A library that a linker makes ---

_EXPORT = """
#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif
"""


def _target_variable(name: str) -> str:
    """Return the variable with the address that the function ``name`` jumps to."""
    return f"ort_gridsample_target_{name}"


def _source() -> str:
    """Return the library's source in C. All arguments are pointers or sizes."""
    lines = [_EXPORT]
    for name, n_arguments in ENTRY_POINTS.items():
        variable = _target_variable(name)
        types = ", ".join(["void *"] * n_arguments)
        names = [f"argument{index}" for index in range(n_arguments)]
        declared = ", ".join(f"void *{argument}" for argument in names)
        lines.append(f"EXPORT void *(*{variable})({types}) = 0;")
        call = f"{variable}({', '.join(names)})"
        lines.append(f"EXPORT void *{name}({declared}) {{ return {call}; }}")
    return "\n".join(lines)


def linked_library(folder: Path) -> Path:
    """Return the path of the library in ``folder``, and link it if it is not there yet.

    It has variables with the addresses to jump to, which :func:`_load_linked` sets. Its name has
    the hash of its content: a damaged library would end the process, and is linked again. Content
    after the end of a library would break its signature on macOS.

    Raises:
        GridSampleError: there is no linker.
        RuntimeError: the linker failed.
        OSError: the library cannot be written.
    """
    source_code = _source()
    properties = f"{target.system} {target.processor} {source_code}"
    key = hashlib.sha256(properties.encode()).hexdigest()[:16]
    suffix = library_trailer.SUFFIXES.get(target.system, ".so")
    for path in sorted(folder.glob(f"trampoline-{key}-*{suffix}")):
        with suppress(OSError):  # another process removed it, or it cannot be read
            if path.name == _library_name(key, path.read_bytes(), suffix):
                return path
            path.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    command = linking.linker(None, "compiled ops")
    if target.system != "win32":
        command.append("-fPIC")
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary) / "trampoline.c"
        source.write_text(source_code)
        output = Path(temporary) / f"trampoline{suffix}"
        task = "linking the registration of compiled ops"
        linking.run([*command, "-o", str(output), str(source)], task)
        content = output.read_bytes()
    path = folder / _library_name(key, content, suffix)
    with atomic_write(path) as file:
        file.write_bytes(content)
    return path


def _library_name(key: str, content: bytes, suffix: str) -> str:
    return f"trampoline-{key}-{digest(content, key)}{suffix}"


def _load_linked(functions: Mapping[str, int]) -> tuple[ctypes.CDLL, str]:
    """Link and load the library, and let its functions jump to these addresses.

    Returns:
        The library and its path.

    Raises:
        NoTrampolineError: the library cannot be linked or loaded.
    """
    try:
        path = str(linked_library(cache_folder()))
        library = ctypes.CDLL(path)
    except GridSampleError as error:
        reason = f"this system needs a linker for it: install {error.expected}"
        raise NoTrampolineError(reason) from error
    except (RuntimeError, OSError) as error:
        raise NoTrampolineError(str(error)) from error
    for name, address in functions.items():
        ctypes.c_void_p.in_dll(library, _target_variable(name)).value = address
    return library, path
