// Compile the Python modules in a folder with Pyodide's Python, so that the page need not. Only the bytecode stays.
// Arguments: the folder of the page, the folder with a folder for each archive, and the folder that they are unpacked to.
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [page, modules, unpackedTo] = process.argv.slice(2);
const pyodideFolder = join(resolve(page), "pyodide");
const { loadPyodide } = await import(pathToFileURL(join(pyodideFolder, "pyodide.mjs")));
const pyodide = await loadPyodide({ indexURL: pyodideFolder });
pyodide.mountNodeFS("/modules", resolve(modules));
pyodide.globals.set("unpacked_to", unpackedTo);
pyodide.runPython(`
import compileall, pathlib, py_compile

for folder in pathlib.Path("/modules").iterdir():
    is_compiled = compileall.compile_dir(
        folder,
        stripdir=str(folder),
        prependdir=unpacked_to,
        quiet=1,
        legacy=True,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    assert is_compiled, folder
    for source in folder.rglob("*.py"):
        source.unlink()
`);
