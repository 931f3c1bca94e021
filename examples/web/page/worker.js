// The worker: Python and onnxruntime-web, away from the page's thread. main.js starts it from a blob.
import { Engine } from "./engine.js";
import { loadPyodide } from "./pyodide/pyodide.mjs";

const BASE = new URL("./", import.meta.url).href;

let starting;
let ortPromise;

function post(message) {
  self.postMessage(message);
}

/** Fetch a file of the page; report the bytes that arrive. */
async function fetchBytes(path, count) {
  const response = await fetch(new URL(path, BASE));
  if (!response.ok) throw new Error(`${path} cannot be read (${response.status})`);
  const bytes = new Uint8Array(await response.arrayBuffer());
  count(bytes.length);
  return bytes;
}

function loadOrt() {
  ortPromise ??= (async () => {
    post({ status: "Loading onnxruntime-web" });
    const ort = await import("./onnxruntime/ort.wasm.min.mjs");
    ort.env.wasm.numThreads = 1;
    ort.env.wasm.wasmPaths = new URL("onnxruntime/", BASE).href;
    return ort;
  })();
  return ortPromise;
}

async function start(index) {
  const files = index.files.filter((file) => file.path.startsWith("python/"));
  let n = 0;
  const archives = files.map((file) =>
    fetchBytes(file.path, () => post({ progress: ++n / (files.length + 3), step: `Loaded ${file.package}` })),
  );
  const engine = await Engine.start({
    loadPyodide,
    indexURL: new URL("pyodide/", BASE).href,
    archives,
    loadOrt,
    progress: (step) => post({ progress: ++n / (files.length + 3), step }),
  });
  post({ progress: 1, step: "Ready" });
  return engine;
}

const HANDLERS = {
  start: async ({ index }) => {
    starting = start(index);
    await starting;
  },
  files: async ({ files }) => (await starting).setFiles(files),
  addFile: async ({ name, bytes }) => (await starting).addFile(name, bytes),
  read: async ({ name }) => (await starting).readFile(name),
  call: async ({ name, args }) => (await starting).call(name, args),
  run: async ({ side, name, external }) => (await starting).run(side, name, external),
};

self.addEventListener("message", async ({ data: { id, type, ...args } }) => {
  try {
    post({ id, result: await HANDLERS[type](args) });
  } catch (error) {
    post({ id, error: String(error?.message ?? error) });
  }
});
post({});
