// Calls of functions in worker.js, which runs Python and onnxruntime-web.

/**
 * A worker from a blob: it inherits the page's policy, which a worker from a URL does not. The policy allows no workers
 * from URLs, and a static import would count as one.
 */
function startWorker() {
  const url = new URL("worker.js", document.baseURI).href;
  const blob = new Blob([`import(${JSON.stringify(url)});`], { type: "text/javascript" });
  return new Worker(URL.createObjectURL(blob), { type: "module" });
}

const worker = startWorker();
const waiting = new Map();
let lastId = 0;
let workerStarted;
/** The worker loses messages that arrive before it listens. */
const listening = new Promise((resolve) => (workerStarted = resolve));

/** Ask the worker; return a promise of its result. */
export async function ask(type, args = {}, transfer = []) {
  await listening;
  return new Promise((resolve, reject) => {
    const id = ++lastId;
    waiting.set(id, { resolve, reject });
    worker.postMessage({ id, type, ...args }, transfer);
  });
}

/** Call a function of page.py; return a promise of its result. */
export const call = (name, args = {}) => ask("call", { name, args });

/** Call functions for the worker's progress, its status and its failure to start. */
export function listen({ onProgress, onStatus, onError }) {
  worker.addEventListener("message", ({ data }) => {
    if (data.id !== undefined) {
      const { resolve, reject } = waiting.get(data.id);
      waiting.delete(data.id);
      if (data.error === undefined) resolve(data.result);
      else reject(new Error(data.error));
    } else if (data.progress !== undefined) {
      onProgress(data.progress, data.step);
    } else if (data.status !== undefined) {
      onStatus(data.status);
    } else {
      workerStarted();
    }
  });
  worker.addEventListener("error", (event) => {
    onError(`The page's worker could not be started: ${event.message ?? "this browser does not support it"}.`);
  });
}
