"""Copies of a project, in which its tests run, each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .project import PLUGIN, Project

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Ended:
    """How a process with tests ended.

    Attributes:
        code: its exit code, negative for a signal; None where it ran past its limit.
        log: what the plugin noted, in order.
        output: the end of what was printed.
    """

    code: int | None
    log: list[dict[str, Any]]
    output: str

    @property
    def all_passed(self) -> bool:
        """Whether all tests passed, or a change of their parameters left none, and the last came to its end."""
        return self.code in (0, 5) and all("done" in entry for entry in self.log[-1:])


class Place:
    """A copy of ``project`` in ``folder``; its tests see nothing of the original, and may take ``memory`` bytes."""

    def __init__(self, project: Project, folder: Path, memory: int) -> None:
        self.project = project
        self.folder = folder
        self.tree = folder / "tree"
        self._memory = memory
        self._is_changed = False
        self._is_closed = False
        self._process: subprocess.Popen[bytes] | None = None
        project.copy(self.tree)
        (folder / "plugin").mkdir()
        shutil.copy(PLUGIN, folder / "plugin" / "mutants_plugin.py")

    @contextlib.contextmanager
    def changed(self, path: str, content: bytes) -> Iterator[None]:
        """Let the file ``path`` say ``content`` for a while."""
        file = self.tree / path
        original, stat = file.read_bytes(), file.stat()
        self._is_changed = True
        file.write_bytes(content)
        os.utime(file, (0, 0))  # so that what Python compiled before is older, even if it was in this very second
        try:
            yield
        finally:
            file.write_bytes(original)
            os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
            self._is_changed = False

    def test(
        self,
        files: Iterable[str],
        limit: float,
        tests: Mapping[str, float | None] | None = None,
        more: Mapping[str, str] | None = None,
        new_kernels: bool = False,
        stop: bool = True,
    ) -> Ended:
        """Run the tests of ``files``, relative to the root.

        Args:
            files: where the tests are.
            limit: the process is ended after so many seconds.
            tests: those to run, as the plugin is told; else all run.
            more: what else the environment says.
            new_kernels: whether Numba must compile everything anew.
            stop: whether the first test that fails is the last.
        """
        scratch, log, output = (self.folder / name for name in ("scratch", "log", "output"))
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        log.write_bytes(b"")
        # Whoever measures the coverage of this command must not measure that of the tests too.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")} | {
            "PYTHONPATH": os.pathsep.join(map(str, (self.tree, self.folder / "plugin"))),
            "TMPDIR": str(scratch),
            "NUMBA_CACHE_DIR": str((scratch if new_kernels else self.folder) / "kernels"),
            "MUTANTS_LOG": str(log),
            "MUTANTS_PACKAGE": self.project.package,
            **(more or {}),
        }
        if self._is_changed:
            environment["PYTHONDONTWRITEBYTECODE"] = "1"  # nothing of the change may stay
        if tests is not None:
            environment["MUTANTS_TESTS"] = str(scratch / "tests.json")
            (scratch / "tests.json").write_text(json.dumps(tests))
        words = ["-q", "--tb=short", "-p", "mutants_plugin", *(["-x"] if stop else [])]
        words += [
            "-p",
            "no:cacheprovider",
            "-p",
            "no:hypothesispytest",
        ]  # the latter imports all of Hypothesis at the end
        words += ["--basetemp", str(scratch / "pytest")]
        with output.open("wb") as file:
            code = self._run([sys.executable, "-m", "pytest", *words, *files], environment, file, limit)
        end = output.read_bytes()[-4000:].decode(errors="replace")
        return Ended(code, [json.loads(line) for line in log.read_text().splitlines()], end)

    def _run(self, words: list[str], environment: dict[str, str], output: Any, limit: float) -> int | None:
        if self._is_closed:
            raise KeyboardInterrupt
        process = self._process = subprocess.Popen(
            words,
            cwd=self.tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=self._prepare,
        )
        try:
            return None if self._is_closed else process.wait(limit)  # closed while it was started
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)
            self._process = None  # its number may be another's from now on

    def _prepare(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored in what runs in the background, and inherited
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (self._memory, hard))

    def close(self) -> None:
        """End what runs here, and let nothing else begin."""
        self._is_closed = True
        if (process := self._process) is not None:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Places:
    """``count`` places in ``folder``, which work side by side."""

    def __init__(self, project: Project, folder: Path, count: int) -> None:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // count
        self._all = [Place(project, folder / str(i), memory) for i in range(count)]
        self._free: queue.Queue[Place] = queue.Queue()
        for place in self._all:
            self._free.put(place)

    def each(self, work: Callable[[Place, Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """What ``work`` makes of each item, as it comes; an exception ends everything that runs."""

        def one(item: Item) -> Result:
            place = self._free.get()
            try:
                return work(place, item)
            finally:
                self._free.put(place)

        with ThreadPoolExecutor(len(self._all)) as pool:
            try:
                for future in as_completed([pool.submit(one, item) for item in items]):
                    yield future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for place in self._all:
                    place.close()
                raise
