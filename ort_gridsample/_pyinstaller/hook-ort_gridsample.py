"""What PyInstaller cannot see in the code of ort_gridsample."""

from importlib.util import find_spec
from pathlib import Path

from PyInstaller.utils.hooks import collect_submodules, get_package_paths

#: The kernels on disk have a key that is made of the sources.
module_collection_mode = {"ort_gridsample": "py"}

#: Modules that are imported by computed names.
hiddenimports = collect_submodules("ort_gridsample", lambda name: "._pyinstaller" not in name)
if find_spec("onnxruntime_extensions") is not None:
    hiddenimports += ["onnxruntime_extensions._ocos", "onnxruntime_extensions._version"]

#: Only the command "demo" imports these.
excludedimports = ["matplotlib", "PIL"]

#: A library of the compiled ops. It ends with its hash, so PyInstaller must not change it.
_package = Path(get_package_paths("ort_gridsample")[1])
datas = [(str(path), "ort_gridsample") for path in _package.glob("libort_gridsample.*")]
