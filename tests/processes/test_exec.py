"""``ort-gridsample exec``: programs whose sessions of onnxruntime are replaced, without an edit.

The model has an X of a type for which onnxruntime has no kernel. So a plain session refuses it.
"""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest

import ort_gridsample as ogs
from ort_gridsample.cli import exec as command
from ort_gridsample.cli import verify
from ort_gridsample.custom_ops.compiled_ops.registry import unavailable_reason
from ort_gridsample.session import report
from ort_gridsample.startup import sitecustomize
from ort_gridsample.versions import is_at_least
from support.cases import Attributes
from support.models import grid_sample_model, parsed
from support.processes import PROGRAMS, TESTS, fetch, kill_group

REPOSITORY = TESTS.parent
#: The start of programs: feeds of the model, and a line of JSON about a session.
START = """
import json, sys
import numpy as np
MODEL = sys.argv[1]
FEEDS = {"X": np.full((1, 2, 4, 4), 7, np.uint8), "grid": np.zeros((1, 2, 2, 2), np.float32)}

def show(session):
    output = session.run(None, FEEDS)[0]
    name = type(session).__module__.partition(".")[0]
    providers = [name for name in session.get_providers() if not name.startswith("Azure")]
    print(json.dumps([name, providers[0], output.ravel().tolist()]), flush=True)
"""
OUTPUT = [7] * 8
REPLACED = ["ort_gridsample", "CPUExecutionProvider", OUTPUT]
WITH_PROVIDER = ["onnxruntime", "GridSampleExecutionProvider", OUTPUT]
OPEN_ONE = "import onnxruntime\nshow(onnxruntime.InferenceSession(MODEL))\n"
REFUSAL = "Could not find an implementation for GridSample"

#: What programs write to get the class.
IMPORTS = {
    "module": "import onnxruntime as ort\nInferenceSession = ort.InferenceSession",
    "name": "from onnxruntime import InferenceSession",
    "star": "from onnxruntime import *",
    "collection": "from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession",
    "collection's module": (
        "import onnxruntime.capi.onnxruntime_inference_collection as collection\n"
        "InferenceSession = collection.InferenceSession"
    ),
    "importlib": (
        "import importlib\nort = importlib.import_module('onnxruntime')\n"
        "InferenceSession = ort.InferenceSession"
    ),
    "getattr": "import onnxruntime\nInferenceSession = getattr(onnxruntime, 'InferenceSession')",
    "package first": (
        "import ort_gridsample as ogs\nogs.keep_sessions_through_forks()\nimport onnxruntime\n"
        "assert onnxruntime.InferenceSession is ogs.InferenceSession\n"
        "from onnxruntime import InferenceSession"
    ),
    "package's session first": (
        "from ort_gridsample.session.session import InferenceSession as ours\n"
        "from onnxruntime import InferenceSession\nassert InferenceSession is ours"
    ),
    "reloaded": (
        "import importlib, onnxruntime\nimportlib.reload(onnxruntime)\n"
        "InferenceSession = onnxruntime.InferenceSession"
    ),
}

needs_compiled_ops = pytest.mark.skipif(
    bool(unavailable_reason()), reason=f"no compiled ops: {unavailable_reason()}"
)
needs_provider = pytest.mark.skipif(
    bool(unavailable_reason()) or not is_at_least(onnxruntime.__version__, "1.24"),
    reason="no execution provider",
)
needs_posix = pytest.mark.skipif(os.name != "posix", reason="for POSIX")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a model that a plain session refuses."""
    path = tmp_path_factory.mktemp("exec") / "model.onnx"
    onnx.save(grid_sample_model("uint8", "float32", 2, [Attributes()]), path)
    return str(path)


def exec_command(*options: str) -> list[str]:
    """Return the command ``ort-gridsample exec`` with ``options``, which ends with ``--``."""
    return [sys.executable, "-m", "ort_gridsample", "exec", *options, "--"]


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of the command: this tree in PYTHONPATH, and ``variables``."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(REPOSITORY)]),
        "ORT_DISABLE_TELEMETRY": "1",
        **variables,
    }


def run_exec(
    program: Sequence[str | Path],
    options: Sequence[str] = (),
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``program`` by the command."""
    return subprocess.run(
        [*exec_command(*options), *map(str, program)],
        env=env or environment(),
        capture_output=True,
        text=True,
        timeout=250,
    )


def run_script(script: str, model: str, *options: str, start: str = START) -> list[Any]:
    """Return the lines of JSON that a script of Python prints; its exit status must be 0."""
    result = run_exec([sys.executable, "-c", start + script, model], options)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


# --- The class ---


@pytest.mark.parametrize("imports", IMPORTS.values(), ids=IMPORTS)
def test_exec_replaces_the_class_however_it_is_imported(imports: str, model: str) -> None:
    assert run_script(f"{imports}\nshow(InferenceSession(MODEL))", model) == [REPLACED]


@needs_provider
@pytest.mark.parametrize("imports", IMPORTS.values(), ids=IMPORTS)
def test_exec_with_provider_keeps_the_class_however_it_is_imported(
    imports: str, model: str
) -> None:
    lines = [line for line in imports.splitlines() if not line.startswith("assert")]
    script = "\n".join([*lines, "show(InferenceSession(MODEL))"])
    assert run_script(script, model, "--provider") == [WITH_PROVIDER]


def test_exec_program_can_test_for_and_derive_from_the_class(model: str) -> None:
    script = """
import onnxruntime as ort
from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession, Session
session = ort.InferenceSession(MODEL)

class Derived(ort.InferenceSession):
    def __init__(self, path, **kwargs):
        super().__init__(path, providers=["CPUExecutionProvider"], **kwargs)

derived = Derived(path=MODEL)
derived.run(None, FEEDS)
print(json.dumps([
    isinstance(session, ort.InferenceSession), isinstance(session, InferenceSession),
    isinstance(session, Session), isinstance(derived, ort.InferenceSession),
    issubclass(Derived, ort.InferenceSession), ort.InferenceSession is InferenceSession,
    isinstance(MODEL, ort.InferenceSession),
]))
"""
    assert run_script(script, model) == [[True] * 6 + [False]]


def test_exec_program_that_opens_sessions_in_threads_gets_one_class(model: str) -> None:
    script = """
import threading
import onnxruntime
barrier = threading.Barrier(8)
classes = []
def open_session():
    barrier.wait()
    session_class = onnxruntime.InferenceSession
    session_class(MODEL).run(None, FEEDS)
    classes.append(session_class)
threads = [threading.Thread(target=open_session) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps([len(classes), len(set(classes)), classes[0].__module__]))
"""
    assert run_script(script, model) == [[8, 1, "ort_gridsample.session.session"]]


def test_exec_functions_of_onnxruntime_open_its_own_sessions(tmp_path: Path) -> None:
    """Sessions of model packages (onnxruntime 1.32) are opened without arguments of a session."""
    path = tmp_path / "plain.onnx"
    onnx.save(parsed("g (float[N] x) => (float[N] y) {y = Relu(x)}"), path)
    script = """
import onnxruntime
from onnxruntime.capi import onnxruntime_inference_collection as collection
session = onnxruntime.InferenceSession(MODEL)
assert collection.InferenceSession is onnxruntime.InferenceSession
session_class = eval("InferenceSession", vars(collection))
print(json.dumps(session_class.__module__))
if hasattr(session_class, "_from_initialized_c_session"):
    session = session_class._from_initialized_c_session(session._sess)
print(json.dumps(session.run(None, {"x": np.array([-1, 2], np.float32)})[0].tolist()))
"""
    own = "onnxruntime.capi.onnxruntime_inference_collection"
    assert run_script(script, str(path)) == [own, [0, 2]]


def test_exec_program_may_set_the_class_itself(model: str) -> None:
    script = """
import onnxruntime
onnxruntime.InferenceSession = "its own"
print(json.dumps(onnxruntime.InferenceSession))
from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession
print(json.dumps(InferenceSession.__module__))
"""
    assert run_script(script, model) == ["its own", "ort_gridsample.session.session"]


ARGUMENTS = [
    "MODEL, options",
    "MODEL, options, ['CPUExecutionProvider']",
    "MODEL, None, ['CPUExecutionProvider'], [{}]",
    "MODEL, options, [('CPUExecutionProvider', {})]",
    "MODEL, providers=[('CUDAExecutionProvider', {'device_id': 0}), 'CPUExecutionProvider']",
    "MODEL, providers=[('CUDAExecutionProvider', {'device_id': 0})]",
    "MODEL, providers=ort.get_available_providers()",
    "MODEL, providers=[]",
    "MODEL, providers=('CPUExecutionProvider',)",
    "MODEL, disabled_optimizers=['ConstantFolding']",
    "MODEL, disabled_optimizers={'ConstantFolding'}, enable_fallback=0",
    "path_or_bytes=MODEL, sess_options=options, provider_options=None",
    "pathlib.Path(MODEL)",
    "pathlib.Path(MODEL).read_bytes()",
]


@pytest.mark.parametrize("option", ["", pytest.param("--provider", marks=needs_provider)])
def test_exec_session_takes_the_arguments_of_onnxruntimes(option: str, model: str) -> None:
    script = f"""
import pathlib, warnings
import onnxruntime as ort
warnings.simplefilter("ignore")
options = ort.SessionOptions()
for arguments in {ARGUMENTS!r}:
    show(eval("ort.InferenceSession(" + arguments + ")"))
"""
    lines = run_script(script, model, *filter(None, [option]))
    assert lines == [WITH_PROVIDER if option else REPLACED] * len(ARGUMENTS)


def test_exec_session_can_be_pickled_and_subclasses_pickle_their_own_state(model: str) -> None:
    script = """
import pickle
import onnxruntime

class Pickled(onnxruntime.InferenceSession):
    def __init__(self, path):
        super().__init__(path)
        self.path = path
    def __getstate__(self):
        return {"path": self.path}
    def __setstate__(self, state):
        self.__init__(state["path"])

for session in onnxruntime.InferenceSession(MODEL), Pickled(MODEL):
    copy = pickle.loads(pickle.dumps(session))
    print(json.dumps([type(copy) is type(session), copy.run(None, FEEDS)[0].ravel().tolist()]))
"""
    assert run_script(script, model) == [[True, OUTPUT]] * 2


def test_exec_model_without_sampling_nodes_is_opened_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "plain.onnx"
    onnx.save(parsed("g (float[N] x) => (float[N] y) {y = Relu(x)}"), path)
    script = """
import onnxruntime
session = onnxruntime.InferenceSession(MODEL)
output = session.run(["y"], {"x": np.array([-1, 2], np.float32)})[0]
print(json.dumps([session._model_path, output.tolist(), session.placements]))
"""
    assert run_script(script, str(path)) == [[str(path), [0, 2], []]]


def test_exec_quantization_sessions_leave_the_class_replaced(model: str) -> None:
    script = """
import onnxruntime, ort_gridsample as ogs
for _ in range(2):
    with ogs.quantization_sessions():
        show(onnxruntime.InferenceSession(MODEL))
show(onnxruntime.InferenceSession(MODEL))
"""
    assert run_script(script, model) == [REPLACED] * 3


# --- Where nothing is replaced ---


def test_exec_program_without_onnxruntime_imports_nothing(model: str) -> None:
    script = """
import json, os, sys
names = {"ort_gridsample", "onnx", "onnxruntime", "numpy", "importlib.util"}
print(json.dumps([sorted(names & set(sys.modules)), [p for p in sys.path if "startup" in p]]))
"""
    (_, plain_path), (modules, path) = [
        json.loads(
            subprocess.run(
                [*start, sys.executable, "-c", script],
                env=environment(),
                capture_output=True,
                check=True,
            ).stdout
        )
        for start in ([], exec_command())
    ]
    assert path == plain_path == []
    assert set(modules) <= {"importlib.util"}


def test_exec_program_that_opens_no_session_does_not_import_this_package(model: str) -> None:
    script = """
import onnxruntime
onnxruntime.get_available_providers()
print(json.dumps("ort_gridsample" in sys.modules))
"""
    assert run_script(script, model) == [False]


@pytest.mark.parametrize("option", ["-S", "-I", "-E"])
def test_exec_python_that_ignores_the_environment_is_not_changed(option: str) -> None:
    script = "import sys; print([type(finder).__module__ for finder in sys.meta_path])"
    result = run_exec([sys.executable, option, "-c", script])
    assert result.returncode == 0
    assert "sitecustomize" not in result.stdout
    assert result.stderr == ""


def test_exec_python_without_this_package_uses_onnxruntime_and_reports_it_once(model: str) -> None:
    script = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "ort_gridsample":
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
{START}
import onnxruntime
for session_class in onnxruntime.InferenceSession, onnxruntime.InferenceSession:
    print(session_class.__module__)
from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession
InferenceSession(MODEL)
"""
    result = run_exec([sys.executable, "-c", script, model])
    assert result.returncode == 1
    assert REFUSAL in result.stderr
    assert result.stdout.split() == ["onnxruntime.capi.onnxruntime_inference_collection"] * 2
    (line,) = [text for text in result.stderr.splitlines() if text.startswith("ort-gridsample")]
    assert line == (
        f"ort-gridsample: {sys.executable} uses onnxruntime's own sessions, because "
        "ort_gridsample is not installed in it"
    )


def test_exec_python_of_another_environment_runs_unchanged(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", symlinks=os.name == "posix", with_pip=False)
    python = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    result = run_exec([python, "-c", "import json; print(json.dumps(1))"])
    assert (result.returncode, result.stdout, result.stderr) == (0, "1\n", "")


def test_exec_import_error_of_onnxruntime_is_unchanged(tmp_path: Path) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('broken')")
    env = environment(PYTHONPATH=os.pathsep.join([str(tmp_path), str(REPOSITORY)]))
    script = "try: import onnxruntime\nexcept ImportError as error: print(error)"
    result = run_exec([sys.executable, "-c", script], env=env)
    assert (result.stdout, result.stderr) == ("broken\n", "")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print('customized')", "customized"),
        ("import no_such_module", "no_such_module"),
        ("raise ValueError('broken')", "broken"),
    ],
)
def test_exec_python_imports_the_former_sitecustomize_as_well(
    code: str, expected: str, tmp_path: Path, model: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(code)
    env = environment(PYTHONPATH=os.pathsep.join([str(tmp_path), str(REPOSITORY)]))
    result = run_exec([sys.executable, "-c", START + OPEN_ONE, model], env=env)
    assert result.returncode == 0
    assert expected in result.stdout + result.stderr
    assert json.loads(result.stdout.splitlines()[-1]) == REPLACED


# --- Child processes ---

CHILDREN = {
    "fork before the import": "if os.fork(): os.wait()\nelse: child()",
    "fork after the import": "import onnxruntime\nif os.fork(): os.wait()\nelse: child()",
    "fork after a session": (
        "import onnxruntime\nsession = onnxruntime.InferenceSession(MODEL)\n"
        "session.run(None, FEEDS)\nif os.fork(): os.wait()\nelse: child()"
    ),
    "multiprocessing fork": "run_child('fork')",
    "multiprocessing spawn": "run_child('spawn')",
    "multiprocessing forkserver": "run_child('forkserver')",
    "executor": (
        "from concurrent.futures import ProcessPoolExecutor\n"
        "with ProcessPoolExecutor(1, multiprocessing.get_context('spawn')) as pool:\n"
        "    pool.submit(child).result()"
    ),
    "subprocess": "subprocess.run([sys.executable, __file__, MODEL, 'child'], check=True)",
    "subprocess of a shell": (
        'command = f\'"{sys.executable}" "{__file__}" "{MODEL}" child\'\n'
        "subprocess.run(command, shell=True, check=True)"
    ),
    "os.system": 'os.system(f\'"{sys.executable}" "{__file__}" "{MODEL}" child\')',
}
CHILD_PROGRAM = """
import multiprocessing, os, subprocess

def child():
    import onnxruntime
    show(onnxruntime.InferenceSession(MODEL))

def run_child(method):
    process = multiprocessing.get_context(method).Process(target=child)
    process.start()
    process.join()

def main():
    BODY

if __name__ == "__main__":
    if sys.argv[2:] == ["child"]:
        child()
    else:
        main()
"""


def child_program(body: str, folder: Path) -> Path:
    """Return the file of a program that opens a session in a child."""
    path = folder / "parent.py"
    body = body.replace("\n", "\n    ")
    path.write_text(START + CHILD_PROGRAM.replace("BODY", body))
    return path


@needs_posix
@pytest.mark.parametrize("option", ["", pytest.param("--provider", marks=needs_provider)])
@pytest.mark.parametrize("body", CHILDREN.values(), ids=CHILDREN)
def test_exec_replaces_the_class_in_children(
    body: str, option: str, model: str, tmp_path: Path
) -> None:
    program = child_program(body, tmp_path)
    result = run_exec([sys.executable, program, model], list(filter(None, [option])))
    assert result.returncode == 0, result.stderr
    expected = WITH_PROVIDER if option else REPLACED
    assert [json.loads(line) for line in result.stdout.splitlines()] == [expected]


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("gunicorn") is None, reason="gunicorn is not installed"
)
@pytest.mark.parametrize("options", [[], ["--preload"]], ids=["", "preload"])
def test_exec_gunicorn_workers_open_sessions(options: list[str], model: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    gunicorn = [sys.executable, "-m", "gunicorn", *options, "--workers=2"]
    gunicorn += [f"--bind=127.0.0.1:{port}", "plain_wsgi_server:application"]
    paths = os.pathsep.join([str(PROGRAMS), os.environ.get("PYTHONPATH", ""), str(REPOSITORY)])
    env = environment(PYTHONPATH=paths, MODEL=model)
    with subprocess.Popen(
        [*exec_command("--report"), *gunicorn],
        env=env,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as server:
        try:
            answers = {fetch(f"http://127.0.0.1:{port}/") for _ in range(10)}
            server.send_signal(signal.SIGTERM)
            _, err = server.communicate(timeout=60)
            assert server.returncode == 0
        finally:
            kill_group(server)
    assert answers == {json.dumps(OUTPUT)}
    assert f"ort-gridsample: {model}\n  GridSample node 'sample0': " in err


@pytest.mark.network
@pytest.mark.timeout(900)
def test_exec_program_of_the_package_index_opens_its_own_session(
    model: str, tmp_path: Path
) -> None:
    """sit4onnx runs a model file on ones, in a session that it opens itself."""
    venv.create(tmp_path / "venv", symlinks=os.name == "posix", with_pip=True)
    scripts = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    install = [scripts / "python", "-m", "pip", "install", "--quiet", REPOSITORY]
    subprocess.run([*install, "numba>=0.61,<0.69", "sit4onnx"], check=True)
    arguments = f"-if {model} -oep cpu -fs 1 2 4 4 -fs 1 2 2 2".split()
    env = {**environment(), "PYTHONPATH": ""}
    program = [scripts / "sit4onnx", *arguments]
    plain = subprocess.run(program, env=env, capture_output=True, text=True)
    assert plain.returncode != 0
    assert REFUSAL in plain.stderr
    command = [scripts / "ort-gridsample", "exec", "--report", "--", *program]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "avg elapsed time per pred" in done.stdout
    assert done.stderr.endswith(
        f"ort-gridsample: {model}\n  GridSample node 'sample0': compiled op\n"
    )


# --- Programs that cannot be started by the command ---

#: A program that imports the class by its name, and has its own list of providers.
PROGRAM = """
from onnxruntime import InferenceSession
show(InferenceSession(MODEL, providers=sys.argv[2].split(",")))
"""
#: What whoever starts a program's code runs before.
REPLACE = (
    "import onnxruntime, ort_gridsample as ogs\nonnxruntime.InferenceSession = ogs.InferenceSession"
)
REGISTER = "import ort_gridsample as ogs\nogs.register_provider()"
BOTH_PROVIDERS = "GridSampleExecutionProvider,CPUExecutionProvider"


@pytest.mark.parametrize(
    ("before", "providers", "expected"),
    [
        (REPLACE, "CPUExecutionProvider", REPLACED),
        pytest.param(REGISTER, BOTH_PROVIDERS, WITH_PROVIDER, marks=needs_provider),
    ],
    ids=["replaced class", "registered provider"],
)
def test_program_with_a_first_line_runs_the_model(
    before: str, providers: str, expected: list[Any], model: str
) -> None:
    script = f"{before}\n{START}{PROGRAM}"
    command = [sys.executable, "-c", script, model, providers]
    result = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == expected


def test_program_runs_a_file_of_basic_operators(model: str, tmp_path: Path) -> None:
    patched = str(tmp_path / "basic.onnx")
    ours = [sys.executable, "-m", "ort_gridsample"]
    patch = [*ours, "patch", model, patched, "--target", "primitives"]
    subprocess.run(patch, env=environment(), check=True, capture_output=True)
    command = [sys.executable, "-c", START + PROGRAM, patched, "CPUExecutionProvider"]
    result = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert json.loads(result.stdout) == ["onnxruntime", "CPUExecutionProvider", OUTPUT]


# --- The report ---

NODE = r"  GridSample node 'sample0': "


def report_of(
    script: str, model: str, *options: str, status: int = 0, path: Path | None = None
) -> list[str]:
    """Return the lines of stderr of a program that was started with ``--report``."""
    arguments = ["-c", START + script] if path is None else [str(path)]
    result = run_exec([sys.executable, *arguments, model], ["--report", *options])
    assert result.returncode == status, result.stderr
    return result.stderr.splitlines()


@pytest.mark.parametrize(
    ("end", "status"),
    [("", 0), ("sys.exit(3)", 3), ("raise ValueError('at the end')", 1), ("1 / 0", 1)],
)
def test_exec_report_has_the_placements_however_the_program_ends(
    end: str, status: int, model: str
) -> None:
    lines = report_of(OPEN_ONE + end, model, status=status)
    assert lines[-2] == f"ort-gridsample: {model}"
    (placement,) = ogs.InferenceSession(model).placements
    assert lines[-1] == f"  {placement}"
    assert lines[-1].startswith(NODE)


def test_exec_report_counts_sessions_and_describes_models(model: str, tmp_path: Path) -> None:
    plain = tmp_path / "plain.onnx"
    onnx.save(parsed("g (float[N] x) => (float[N] y) {y = Relu(x)}"), plain)
    script = f"""
import onnxruntime
for _ in range(3):
    onnxruntime.InferenceSession(MODEL)
onnxruntime.InferenceSession(open(MODEL, "rb").read())
onnxruntime.InferenceSession({str(plain)!r})
"""
    lines = report_of(script, model)
    assert lines[0] == f"ort-gridsample: {model} (3 sessions)"
    assert lines[2] == f"ort-gridsample: a model of {Path(model).stat().st_size} bytes"
    assert lines[4:] == [f"ort-gridsample: {plain}", "  no node that samples on a grid"]


@needs_posix
@pytest.mark.parametrize("method", [name for name in CHILDREN if name != "fork after a session"])
def test_exec_report_has_the_sessions_of_children(method: str, model: str, tmp_path: Path) -> None:
    lines = report_of("", model, path=child_program(CHILDREN[method], tmp_path))
    assert lines[0] == f"ort-gridsample: {model}"
    assert lines[1].startswith(NODE)
    assert len(lines) == 2


@needs_posix
def test_exec_report_of_a_child_lacks_the_sessions_of_its_parent(
    model: str, tmp_path: Path
) -> None:
    body = (
        "import onnxruntime\nsession = onnxruntime.InferenceSession(MODEL)\n"
        "if os.fork(): os.wait()\nelse: sys.exit()"
    )
    lines = report_of("", model, path=child_program(body, tmp_path))
    assert [line for line in lines if line.startswith("ort")] == [f"ort-gridsample: {model}"]


@needs_provider
def test_exec_report_with_provider_lists_its_nodes(model: str) -> None:
    lines = report_of(OPEN_ONE, model, "--provider")
    assert lines == [f"ort-gridsample: {model}", f"{NODE}GridSampleExecutionProvider"]


def test_exec_report_has_sessions_that_the_program_opens_by_this_packages_name(
    model: str,
) -> None:
    lines = report_of("import ort_gridsample as ogs\nogs.InferenceSession(MODEL)", model)
    assert lines[0] == f"ort-gridsample: {model}"


def test_exec_without_report_prints_nothing(model: str) -> None:
    result = run_exec([sys.executable, "-c", START + OPEN_ONE, model])
    assert result.stderr == ""


# --- The execution provider ---


@needs_provider
def test_exec_with_provider_uses_it_behind_other_providers_and_before_the_cpus(
    model: str,
) -> None:
    script = """
import warnings
warnings.simplefilter("ignore")
import onnxruntime
options = onnxruntime.SessionOptions()
session = onnxruntime.InferenceSession(MODEL, options)
again = onnxruntime.InferenceSession(MODEL, options)
session.set_providers(["CPUExecutionProvider"])
for each in session, again:
    show(each)
print(json.dumps([
    session.get_providers(),
    isinstance(session, onnxruntime.InferenceSession),
    type(session) is onnxruntime.InferenceSession,
    repr(type(session)),
    hasattr(session, "placements"),
]))
"""
    *sessions, facts = run_script(script, model, "--provider")
    assert sessions == [WITH_PROVIDER] * 2
    name = "onnxruntime.capi.onnxruntime_inference_collection.InferenceSession"
    providers = ["GridSampleExecutionProvider", "CPUExecutionProvider"]
    assert facts == [providers, True, True, f"<class '{name}'>", False]


@pytest.mark.skipif(is_at_least(onnxruntime.__version__, "1.24"), reason="it has providers")
def test_exec_with_provider_in_an_older_onnxruntime_reports_it_once(model: str) -> None:
    script = """
import onnxruntime
for _ in range(2):
    try:
        onnxruntime.InferenceSession(MODEL)
    except Exception as error:
        print(json.dumps(str(error)))
"""
    result = run_exec([sys.executable, "-c", START + script, model], ["--provider"])
    assert result.stdout.count(REFUSAL) == 2
    assert result.stderr.count("its sessions run without the execution provider") == 1


# --- The process ---


@pytest.mark.parametrize("status", [0, 1, 3, 77])
def test_exec_has_the_exit_status_of_the_program(status: int) -> None:
    assert run_exec([sys.executable, "-c", f"raise SystemExit({status})"]).returncode == status


@needs_posix
def test_exec_becomes_the_program() -> None:
    script = "import os, sys; print(os.getpid(), *sys.argv[1:])"
    with subprocess.Popen(
        [*exec_command(), sys.executable, "-c", script, "--report", "--", "-x"],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        out, _ = process.communicate(timeout=60)
    assert out.split() == [str(process.pid), "--report", "--", "-x"]


@needs_posix
@pytest.mark.parametrize(
    ("number", "is_caught", "status"),
    [
        (signal.SIGTERM, False, -signal.SIGTERM),
        (signal.SIGTERM, True, 5),
        (signal.SIGINT, True, 5),
        (signal.SIGHUP, False, -signal.SIGHUP),
    ],
)
def test_exec_program_gets_signals(number: int, is_caught: bool, status: int) -> None:
    handler = f"signal.signal({int(number)}, lambda *_: sys.exit(5))\n" if is_caught else ""
    script = f"import signal, sys, time\n{handler}print('ready', flush=True)\ntime.sleep(60)"
    with subprocess.Popen(
        [*exec_command(), sys.executable, "-c", script],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        # The tests may run where the signal is ignored, such as under nohup.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(30) == status


@needs_posix
def test_exec_program_has_the_signals_of_a_shell() -> None:
    result = run_exec(["sh", "-c", "yes | head -n 1"])
    assert (result.returncode, result.stdout, result.stderr) == (0, "y\n", "")


@pytest.mark.parametrize(
    ("program", "status", "message"),
    [
        ([], 2, "no program is given"),
        (["no-such-program"], 127, "'no-such-program' cannot be started: it is not found"),
        (["./no-such-program"], 127, "'./no-such-program' cannot be started: it is not found"),
        (["."], 126, "'.' cannot be started: "),
    ],
)
def test_exec_of_no_program_has_the_status_of_a_shell(
    program: list[str], status: int, message: str
) -> None:
    result = run_exec(program)
    assert result.returncode == status
    assert result.stderr.startswith(f"ort-gridsample: {message}")
    assert result.stderr.count("\n") == 1


def test_exec_needs_no_dashes_before_the_program(model: str) -> None:
    result = subprocess.run(
        [*exec_command()[:-1], sys.executable, "-c", START + OPEN_ONE, model],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert json.loads(result.stdout) == REPLACED


def test_wait_for_program_returns_its_status(tmp_path: Path) -> None:
    """The way of Windows, where a process cannot become another one."""
    script = "import os, sys; sys.exit(int(os.environ['STATUS']))"
    env = {**os.environ, "STATUS": "7"}
    assert command._wait_for([sys.executable, "-c", script], env) == 7


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (None, ["startup"]),
        ("", ["startup"]),
        ("a", ["startup", "a"]),
        (f"a{os.pathsep}{os.pathsep}b", ["startup", "a", "", "b"]),
        (f"startup{os.pathsep}a", ["startup", "a"]),
    ],
)
def test_environment_of_program_has_the_folder_once_and_keeps_the_path(
    path: str | None, expected: list[str]
) -> None:
    folder = str(command._STARTUP)
    before = {"A": "b"} if path is None else {"PYTHONPATH": path.replace("startup", folder)}
    after = command.environment_of(["session"], before)
    entries = [entry.replace(folder, "startup") for entry in after["PYTHONPATH"].split(os.pathsep)]
    assert entries == expected
    assert after["ORT_GRIDSAMPLE_EXEC"] == "session"
    assert {name: after[name] for name in before if name != "PYTHONPATH"} == {
        name: value for name, value in before.items() if name != "PYTHONPATH"
    }


def test_variable_of_the_command_is_that_of_its_errors() -> None:
    assert sitecustomize.VARIABLE == report.VARIABLE


def test_exec_of_unknown_options_keeps_onnxruntimes_class(model: str) -> None:
    env = command.environment_of(["sesion"], environment())
    script = START + "import onnxruntime; print(onnxruntime.InferenceSession.__module__)"
    result = subprocess.run(
        [sys.executable, "-c", script, model], env=env, capture_output=True, text=True
    )
    assert result.stdout == "onnxruntime.capi.onnxruntime_inference_collection\n"
    assert "ORT_GRIDSAMPLE_EXEC is 'sesion', expected 'session'" in result.stderr


# --- This package in such programs ---


@pytest.mark.parametrize("option", ["", pytest.param("--provider", marks=needs_provider)])
def test_exec_of_our_commands_compares_with_plain_onnxruntime(
    option: str, model: str, tmp_path: Path
) -> None:
    """`inspect` and `verify` still find that onnxruntime refuses the model."""
    ours = [sys.executable, "-m", "ort_gridsample"]
    options = list(filter(None, [option]))
    (record,) = json.loads(run_exec([*ours, "inspect", "--json", model], options).stdout)
    assert record["native"] is False
    result = run_exec([*ours, "verify", "--json", model, model], options)
    assert result.returncode == verify.REFUSED, result.stderr
    plain = subprocess.run(
        [*ours, "verify", "--json", model, model], env=environment(), capture_output=True, text=True
    )
    assert result.stdout == plain.stdout


def test_exec_nested_in_itself_is_one_replacement(model: str) -> None:
    inner = [*exec_command(), sys.executable, "-c", START + OPEN_ONE, model]
    result = run_exec(inner)
    assert json.loads(result.stdout) == REPLACED
