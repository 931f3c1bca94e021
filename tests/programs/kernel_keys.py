"""Print the keys of all kernels of a package after each of some edits, as JSON.

The arguments are the folder of the package and a file with a list of edits. An edit maps a module's
path in the package to a text in the module and its replacement.
"""

import json
import sys
from pathlib import Path

folder = Path(sys.argv[1])
edits = json.loads(Path(sys.argv[2]).read_text())
sys.path.insert(0, str(folder))
sys.dont_write_bytecode = True  # an edit may keep the size and the time of a file


def kernel_keys() -> dict[str, str]:
    """Import the package again, and return the key of each kernel by its name."""
    for name in list(sys.modules):
        if name.partition(".")[0] in ("ort_gridsample", "support"):
            del sys.modules[name]
    from ort_gridsample.kernels import compilation, kernel_key
    from support.compiled_sources import compiled_specs, kernel_function, kernel_name

    assert Path(kernel_key.__file__).is_relative_to(folder)
    return {
        kernel_name(spec): kernel_key.kernel_key(kernel_function(spec), compilation.OPTIONS)
        for spec in compiled_specs()
    }


results = []
for edit in edits:
    contents = {}
    for path, (old, new) in edit.items():
        file = folder / "ort_gridsample" / path
        contents[file] = text = file.read_text()
        assert old in text, (path, old)
        file.write_text(text.replace(old, new))
    results.append(kernel_keys())
    for file, text in contents.items():
        file.write_text(text)
print(json.dumps(results))
