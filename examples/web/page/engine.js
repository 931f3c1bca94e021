// The page's Python and onnxruntime-web, without anything of a browser's window: a worker runs it, and so does node.

const MODEL_FOLDER = "/model";
const SITE_PACKAGES = "/lib/python3.14/site-packages";
/** Array types for the data of tensors, by the names that onnxruntime-web and NumPy share. */
const ARRAYS = {
  float32: Float32Array,
  float64: Float64Array,
  float16: globalThis.Float16Array ?? Uint16Array,
  int8: Int8Array,
  int16: Int16Array,
  int32: Int32Array,
  int64: BigInt64Array,
  uint8: Uint8Array,
  uint16: Uint16Array,
  uint32: Uint32Array,
  uint64: BigUint64Array,
  bool: Uint8Array,
};
/** How often a model runs for its time. */
const N_TIMED_RUNS = 3;

/** An error whose text is a sentence for the user. */
export class PageError extends Error {}

/** Python, with the files of a model, and onnxruntime-web, which is loaded by the first question. */
export class Engine {
  /**
   * @param pyodide Pyodide, with the page's wheels unpacked
   * @param loadOrt returns a promise of onnxruntime-web
   */
  constructor(pyodide, loadOrt) {
    this.pyodide = pyodide;
    this.page = pyodide.pyimport("page");
    this.loadOrt = loadOrt;
    this.names = [];
    pyodide.FS.mkdirTree(MODEL_FOLDER);
  }

  /**
   * Start Python.
   * @param loadPyodide Pyodide's function
   * @param indexURL the folder of Pyodide
   * @param archives promises of the archives of Python modules
   * @param loadOrt returns a promise of onnxruntime-web
   * @param progress is called with a word for each step
   */
  static async start({ loadPyodide, indexURL, archives, loadOrt, progress = () => {} }) {
    progress("Starting Python");
    const pyodide = await loadPyodide({ indexURL, stdout: () => {}, stderr: () => {} });
    progress("Unpacking onnx and numpy");
    for (const archive of archives) {
      pyodide.unpackArchive(await archive, "zip", { extractDir: SITE_PACKAGES });
    }
    progress("Importing onnx and ort_gridsample");
    return new Engine(pyodide, loadOrt);
  }

  // --- Files ---

  /** Replace the files of the model by others: a name -> bytes. */
  setFiles(files) {
    for (const name of this.names) this._unlink(name);
    this.names = [];
    for (const [name, bytes] of Object.entries(files)) this.addFile(name, bytes);
  }

  addFile(name, bytes) {
    const path = `${MODEL_FOLDER}/${name}`;
    this.pyodide.FS.mkdirTree(path.slice(0, path.lastIndexOf("/")));
    this.pyodide.FS.writeFile(path, bytes, { canOwn: true });
    if (!this.names.includes(name)) this.names.push(name);
  }

  readFile(name) {
    return this.pyodide.FS.readFile(`${MODEL_FOLDER}/${name}`);
  }

  path(name) {
    return `${MODEL_FOLDER}/${name}`;
  }

  _unlink(name) {
    try {
      this.pyodide.FS.unlink(this.path(name));
    } catch {
      // The file was never written.
    }
  }

  // --- Python ---

  /** Call a function of page.py; ask onnxruntime-web what it needs to know, until it knows all. */
  async call(name, args = {}) {
    for (;;) {
      const reply = JSON.parse(this.page.call(name, JSON.stringify(args)));
      if (reply.questions.length === 0) {
        if (reply.error !== undefined) throw new PageError(reply.error);
        return reply.result;
      }
      for (const key of reply.questions) await this._answer(key);
    }
  }

  async _answer(key) {
    const ort = await this.loadOrt();
    const { optimized, n_runs: nRuns } = JSON.parse(this.page.question_properties(key));
    let session;
    try {
      session = await ort.InferenceSession.create(toBytes(this.page.question_model(key)), sessionOptions(optimized));
      if (nRuns < 0) {
        const types = session.outputMetadata.map((value) =>
          value.isTensor ? [value.name, value.type, value.shape] : [value.name, "", []],
        );
        this.page.answer_types(key, JSON.stringify(types));
        return;
      }
      const runs = [];
      for (let run = 0; run < nRuns; run++) {
        const outputs = await session.run(toFeeds(ort, this.page.question_feeds(key, run)));
        runs.push(session.outputNames.map((name) => toPython(outputs[name])));
      }
      this._withPython(runs, (argument) => this.page.answer_runs(key, argument));
    } catch (error) {
      this.page.answer_error(key, messageOf(error));
    } finally {
      await session?.release();
    }
  }

  _withPython(value, call) {
    const proxy = this.pyodide.toPy(value);
    try {
      return call(proxy);
    } finally {
      proxy.destroy();
    }
  }

  // --- Runs ---

  /**
   * Run a model on the inputs that draw_inputs made; Python keeps the outputs as those of `side`.
   * @returns the times in milliseconds, or the error of onnxruntime-web
   */
  async run(side, name, external) {
    const ort = await this.loadOrt();
    let session;
    try {
      const options = sessionOptions(true);
      options.externalData = external.map((path) => ({ path, data: this.readFile(path) }));
      const start = performance.now();
      session = await ort.InferenceSession.create(this.readFile(name), options);
      const loadTime = performance.now() - start;
      const allFeeds = toFeeds(ort, this.page.input_arrays());
      const feeds = Object.fromEntries(session.inputNames.map((input) => [input, allFeeds[input]]));
      const times = [];
      let outputs;
      for (let run = 0; run < N_TIMED_RUNS; run++) {
        const runStart = performance.now();
        outputs = await session.run(feeds);
        times.push(performance.now() - runStart);
      }
      const kept = session.outputNames.map((output) => [output, ...toPython(outputs[output])]);
      this._withPython(kept, (argument) => this.page.keep_outputs(side, argument));
      return { loadTime, runTime: Math.min(...times) };
    } catch (error) {
      return { error: sentenceOf(error) };
    } finally {
      await session?.release();
    }
  }
}

function sessionOptions(optimized) {
  return {
    executionProviders: ["wasm"],
    graphOptimizationLevel: optimized ? "all" : "disabled",
    logSeverityLevel: 4,
  };
}

/** Return an error of onnxruntime-web without its code. */
function sentenceOf(error) {
  return messageOf(error).replace(/^.*?ERROR_CODE: \d+, ERROR_MESSAGE: /, "");
}

function messageOf(error) {
  return String(error?.message ?? error);
}

/** Return Python's bytes as an array, and free the proxy. */
function toBytes(proxy) {
  const bytes = proxy.toJs();
  proxy.destroy();
  return bytes;
}

/** Return tensors by name for Python's list of names, types, shapes and data. */
function toFeeds(ort, proxy) {
  const feeds = {};
  for (const [name, type, shape, data] of proxy.toJs()) {
    feeds[name] = toTensor(ort, type, Array.from(shape), data);
  }
  proxy.destroy();
  return feeds;
}

function toTensor(ort, type, shape, data) {
  if (type === "string") return new ort.Tensor("string", data, shape);
  if (!(type in ARRAYS)) throw new Error(`onnxruntime-web has no tensors of type ${type}`);
  const bytes = Uint8Array.from(data);
  return new ort.Tensor(type, new ARRAYS[type](bytes.buffer), shape);
}

/** Return the type, shape and data of a tensor for Python. */
function toPython(tensor) {
  const { type, dims, data } = tensor;
  if (type === "string") return [type, [...dims], data];
  return [type, [...dims], new Uint8Array(data.buffer, data.byteOffset, data.byteLength)];
}
