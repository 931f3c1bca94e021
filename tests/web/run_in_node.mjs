// Patch models with a built page's Python and onnxruntime-web, in node; print a line of JSON for each model.
// Arguments: the folder of the page, and a file with {models: [paths], targets: [names], runs: bool}.
import { existsSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { pathToFileURL } from "node:url";

// Node would print the line of the error, which is all of Pyodide.
process.on("uncaughtException", (error) => {
  console.error(String(error.stack ?? error).slice(-4000));
  process.exit(1);
});
const read = (path) => new Uint8Array(readFileSync(path));

const [folder, jobFile] = process.argv.slice(2);
const load = (path) => import(pathToFileURL(join(folder, path)));
const { Engine } = await load("engine.js");
const { loadPyodide } = await load("pyodide/pyodide.mjs");
const index = JSON.parse(readFileSync(join(folder, "index.json")));
const archives = index.files.filter((file) => file.path.startsWith("python/"));

let ort;
async function loadOrt() {
  if (!ort) {
    ort = await load("onnxruntime/ort.wasm.min.mjs");
    ort.env.wasm.numThreads = 1;
    ort.env.wasm.wasmBinary = read(join(folder, "onnxruntime/ort-wasm-simd-threaded.wasm"));
    ort.env.wasm.wasmPaths = pathToFileURL(join(folder, "onnxruntime/")).href;
  }
  return ort;
}

const start = performance.now();
const engine = await Engine.start({
  loadPyodide,
  indexURL: join(folder, "pyodide"),
  archives: archives.map((file) => Promise.resolve(read(join(folder, file.path)))),
  loadOrt,
});
console.error(`started in ${Math.round(performance.now() - start)} ms`);

const { models, targets, runs } = JSON.parse(readFileSync(jobFile));
for (const path of models) {
  const name = basename(path);
  engine.setFiles({ [name]: read(path) });
  const inspected = await engine.call("inspect", { path: engine.path(name), runtime: "onnxruntime-web" });
  const patched = {};
  for (const target of targets) {
    try {
      const result = await engine.call("patch", {
        path: engine.path(name),
        patched_path: engine.path("patched.onnx"),
        target,
        functions: false,
        opset: null,
        for_runtime: null,
      });
      patched[target] = result.sha256;
    } catch (error) {
      patched[target] = error.message;
    }
  }
  const line = { name: name.replace(/\.onnx$/, ""), records: inspected.records, patched };
  const arrays = path.replace(/\.onnx$/, ".npz");
  if (runs && existsSync(arrays)) line.comparison = await compare(name, arrays);
  console.log(JSON.stringify(line));
}

async function compare(name, arrays) {
  engine.addFile("arrays.npz", read(arrays));
  const patching = { functions: false, opset: null, for_runtime: null, target: "primitives" };
  const paths = { path: engine.path(name), patched_path: engine.path("patched.onnx") };
  await engine.call("patch", { ...paths, ...patching });
  await engine.call("draw_inputs", { path: engine.path(name), shapes: {}, arrays: engine.path("arrays.npz") });
  const before = await engine.run("before", name, []);
  const after = await engine.run("after", "patched.onnx", []);
  const agreements = await engine.call("compare", { first: "stored", second: "after" });
  return { before: before.error ?? "", after: after.error ?? "", agreements };
}
