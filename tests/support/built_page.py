"""Fixtures of the built page of examples/web; ``tox -e web`` names the folder to build it in."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WEB = Path(__file__).parents[2] / "examples" / "web"
#: The environment variables with the folder of the page, which is built if it does not exist, and
#: with a folder that may contain wheels.
FOLDER_VARIABLE = "ORT_GRIDSAMPLE_WEB"
WHEELS_VARIABLE = "ORT_GRIDSAMPLE_WEB_WHEELS"


@pytest.fixture(scope="session")
def web_folder() -> Path:
    """The folder in which the page is built."""
    name = os.environ.get(FOLDER_VARIABLE)
    if not name:
        pytest.skip(f"{FOLDER_VARIABLE} does not name a folder to build the page in (tox -e web)")
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    return Path(name).resolve()


@pytest.fixture(scope="session")
def npm_packages(web_folder: Path) -> Path:
    """A folder with the installed packages of package-lock.json."""
    folder = web_folder.parent / "packages"
    if not (folder / "node_modules").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(WEB / name, folder)
        options = ["--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
        subprocess.run(["npm", "ci", *options], cwd=folder, check=True, timeout=240)
    return folder


@pytest.fixture(scope="session")
def build_script() -> Any:
    """The module examples/web/build.py."""
    spec = importlib.util.spec_from_file_location("build_page", WEB / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def page_folder(web_folder: Path, npm_packages: Path, build_script: Any) -> Path:
    """The built page. The tests are skipped if numpy for Pyodide cannot be fetched."""
    if not web_folder.exists():
        wheels = os.environ.get(WHEELS_VARIABLE)
        command = [sys.executable, str(WEB / "build.py"), str(web_folder)]
        command += ["--packages", str(npm_packages), *(["--wheels", wheels] if wheels else [])]
        process = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if process.returncode == build_script.NOT_FETCHED:
            pytest.skip(process.stderr.strip())
        assert process.returncode == 0, process.stderr
    return web_folder


@pytest.fixture(scope="session")
def index(page_folder: Path) -> Any:
    """The page's index.json."""
    return json.loads((page_folder / "index.json").read_text(encoding="utf-8"))
