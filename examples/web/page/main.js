// What a person sees: the forms, the tables and the sentences. All work is done by worker.js.
import { ask, call, listen } from "./client.js";
import { byId, element, options, showDifferenceTable, showNodes, showRuns } from "./tables.js";

const MODEL_FOLDER = "/model";
/** Protobuf's limit is 2 GiB, and a browser's Python needs several copies of a model. */
const MAX_BYTES = 1.5e9;

// --- What is shown ---

function showStatus(text) {
  byId("status").textContent = text;
}

function showError(text) {
  showStatus("");
  const error = byId("error");
  error.textContent = text;
  error.hidden = !text;
}

function show(...ids) {
  for (const id of ["nodes", "target", "result", "comparison"]) byId(id).hidden = !ids.includes(id);
}

function number(bytes) {
  return `${bytes.toLocaleString("en")} bytes`;
}

let lastTask = Promise.resolve();

/** Run a task after those that were started before; show its failure as a sentence. */
function task(status, work) {
  lastTask = lastTask.then(() => runTask(status, work));
  return lastTask;
}

async function runTask(status, work) {
  const focused = document.activeElement;
  const buttons = document.querySelectorAll("button, input, select");
  for (const button of buttons) button.disabled = true;
  showError("");
  showStatus(status);
  document.body.setAttribute("aria-busy", "true");
  try {
    await work();
    showStatus("");
  } catch (error) {
    showError(error.message);
  } finally {
    document.body.removeAttribute("aria-busy");
    for (const button of buttons) button.disabled = false;
    // A disabled element loses the focus.
    if (document.activeElement === document.body) focused.focus();
  }
}

// --- 1. The model ---

const state = { name: "", external: [], missing: [], inputs: [], sample: "", patchedName: "" };

async function openFiles(files) {
  const model = files.find((file) => /\.onnx$/i.test(file.name)) ?? files[0];
  if (!model) return;
  await task(`Reading ${model.name}`, async () => {
    show();
    const size = files.reduce((sum, file) => sum + file.size, 0);
    if (size > MAX_BYTES) {
      throw new Error(
        `${model.name} has ${number(size)}, which is more than a browser can patch. Use the command: ` +
          `ort-gridsample patch ${model.name} patched.onnx`,
      );
    }
    const contents = {};
    for (const file of files) contents[file.name] = new Uint8Array(await file.arrayBuffer());
    const buffers = Object.values(contents).map((bytes) => bytes.buffer);
    await ready;
    await ask("files", { files: contents }, buffers);
    state.name = model.name;
    state.sample = "";
    await inspect();
  });
}

async function openSample(name) {
  await task(`Loading ${name}`, async () => {
    show();
    const response = await fetch(`samples/${name}.onnx`);
    const bytes = new Uint8Array(await response.arrayBuffer());
    await ready;
    await ask("files", { files: { [`${name}.onnx`]: bytes } }, [bytes.buffer]);
    state.name = `${name}.onnx`;
    state.sample = name;
    await inspect();
  });
}

async function inspect() {
  showStatus(`Looking for nodes in ${state.name}`);
  const runtime = `onnxruntime-web ${versions["onnxruntime-web"]}`;
  const result = await call("inspect", { path: `${MODEL_FOLDER}/${state.name}`, runtime });
  Object.assign(state, { external: result.external, missing: result.missing, inputs: result.inputs });
  byId("model-name").textContent = state.name;
  byId("verdict").textContent = result.verdict;
  byId("notes").replaceChildren(...notesOf(result).map((text) => element("li", { textContent: text })));
  showNodes(result.rows, result.records);
  showShapes(result.inputs);
  if (result.rows.length === 0) {
    show("nodes");
  } else {
    show("nodes", "target");
  }
  byId("verdict").focus();
}

function notesOf({ domains, missing, external }) {
  const notes = [];
  if (domains.length > 0) {
    notes.push(
      `onnxruntime-web cannot load this model: it has operators of the domain ${domains.join(", ")}. It can be ` +
        "patched, and the patched model runs here if the patch replaces all of them.",
    );
  }
  if (missing.length > 0) {
    notes.push(
      `The external data ${missing.join(", ")} is missing. The model can be patched without it, but not run: choose ` +
        "it together with the model.",
    );
  } else if (external.length > 0) {
    notes.push(`The weights stay in ${external.join(", ")}: keep the patched model in the same folder.`);
  }
  return notes;
}

// --- 3. The target ---

let choices;

function showChoice() {
  const choice = choices.choices[byId("choice").selectedIndex];
  byId("why").textContent = choice.why;
  byId("target-name").value = choice.target;
  byId("for-runtime").value = choice.for_runtime ?? "";
  const isLowered = choice.target === "primitives";
  if (!isLowered) byId("functions").checked = false;
}

async function patch() {
  await task("Patching", async () => {
    const target = byId("target-name").value;
    const opset = byId("opset").value;
    state.patchedName = state.name.replace(/(\.onnx)?$/i, ".patched.onnx");
    const result = await call("patch", {
      path: `${MODEL_FOLDER}/${state.name}`,
      patched_path: `${MODEL_FOLDER}/${state.patchedName}`,
      target,
      functions: byId("functions").checked,
      opset: opset ? Number(opset) : null,
      for_runtime: byId("for-runtime").value || null,
    });
    await showResult(result, target);
  });
}

async function showResult(result, target) {
  const nodes = result.replaced === 1 ? "1 node was" : `${result.replaced} nodes were`;
  byId("result-sentence").textContent = result.replaced
    ? `${nodes} replaced.${result.kept.length ? ` These stay: ${result.kept.join(", ")}.` : ""}`
    : `Nothing was replaced: the target ${target} has no other form of these nodes.`;
  const properties = {
    File: state.patchedName,
    Size: `${number(result.bytes_before)} → ${number(result.bytes)}`,
    Opset: result.opset === result.opset_before ? `${result.opset}` : `${result.opset_before} → ${result.opset}`,
    "SHA-256": result.sha256,
  };
  byId("result-properties").replaceChildren(
    ...Object.entries(properties).flatMap(([name, text]) => [
      element("dt", { textContent: name }),
      element("dd", { textContent: text, id: `result-${name.toLowerCase()}` }),
    ]),
  );
  const bytes = await ask("read", { name: state.patchedName });
  const link = byId("download");
  if (link.href) URL.revokeObjectURL(link.href);
  link.href = URL.createObjectURL(new Blob([bytes], { type: "application/octet-stream" }));
  link.download = state.patchedName;
  link.textContent = `Download ${state.patchedName}`;
  byId("command").textContent = result.command;
  byId("comparison-sentence").textContent = "";
  byId("run-table").hidden = true;
  byId("difference-table").hidden = true;
  show("nodes", "target", "result", "comparison");
  byId("result-heading").focus();
}

// --- 5. Before and after ---

function showShapes(inputs) {
  byId("shapes").replaceChildren(
    ...inputs.map(({ name, type, shape }) =>
      element(
        "p",
        {},
        element("label", { htmlFor: `shape-${name}`, textContent: `Shape of ${name} (${type})` }),
        element("input", { id: `shape-${name}`, type: "text", value: shape.join(","), name, spellcheck: false }),
      ),
    ),
  );
}

function shapesOf(inputs) {
  const shapes = {};
  for (const { name } of inputs) {
    const text = byId(`shape-${name}`).value.trim();
    const lengths = text === "" ? [] : text.split(",").map((length) => Number(length));
    if (!lengths.every((length) => Number.isInteger(length) && length >= 0)) {
      throw new Error(`The shape of ${name} is ${text}: write numbers with commas between them.`);
    }
    shapes[name] = lengths;
  }
  return shapes;
}

/** The file of inputs; for a sample, its stored inputs and answers, unless another shape was chosen. */
async function storedArrays(shapes) {
  const [file] = byId("arrays").files;
  if (file) return new Uint8Array(await file.arrayBuffer());
  const hasOtherShapes = state.inputs.some(({ name, shape }) => shape.join() !== shapes[name].join());
  if (!state.sample || hasOtherShapes) return null;
  const response = await fetch(`samples/${state.sample}.npz`);
  return new Uint8Array(await response.arrayBuffer());
}

async function compare() {
  await task("Making inputs", async () => {
    if (state.missing.length > 0) {
      throw new Error(`The model cannot run without its external data: ${state.missing.join(", ")}.`);
    }
    const shapes = shapesOf(state.inputs);
    const stored = await storedArrays(shapes);
    if (stored) await ask("addFile", { name: "arrays.npz", bytes: stored }, [stored.buffer]);
    const drawn = await call("draw_inputs", {
      path: `${MODEL_FOLDER}/${state.name}`,
      shapes,
      arrays: stored ? `${MODEL_FOLDER}/arrays.npz` : null,
    });
    showStatus("Running the model before the patch");
    const before = await ask("run", { side: "before", name: state.name, external: state.external });
    showStatus("Running the patched model");
    const after = await ask("run", { side: "after", name: state.patchedName, external: state.external });
    showRuns(before, after);
    await showDifferences(before, after, drawn);
  });
}

/** Compare the patched model with the best judge: the model before, a stored answer, or onnx's evaluator. */
async function showDifferences(before, after, drawn) {
  const sentence = byId("comparison-sentence");
  byId("difference-table").hidden = true;
  if (after.error) {
    sentence.textContent = before.error
      ? "Neither model runs in onnxruntime-web."
      : "The patched model does not run in onnxruntime-web.";
    sentence.focus();
    return;
  }
  let judge = before.error ? "evaluator" : "before";
  if (drawn.has_expected) judge = "stored";
  if (judge === "evaluator") {
    showStatus("Running the model before the patch in onnx's evaluator");
    const { error } = await call("evaluate", { path: `${MODEL_FOLDER}/${state.name}` });
    if (error) {
      sentence.textContent = `Only the patched model runs, and onnx's evaluator has no answer to compare with: ${error}`;
      sentence.focus();
      return;
    }
  }
  const rows = await call("compare", { first: judge, second: "after" });
  const judges = {
    before: "the model before the patch",
    evaluator: "the model before the patch in onnx's evaluator, with ort_gridsample's operators",
    stored: "the stored answer",
  };
  const agree = rows.every((row) => row.agrees);
  const start = before.error ? "Before, the model does not load. The patched model runs, and " : "The patched model ";
  sentence.textContent = `${start}${agree ? "agrees" : "does not agree"} with ${judges[judge]}.`;
  sentence.className = agree ? "yes" : "no";
  showDifferenceTable(rows, judges[judge]);
  sentence.focus();
}

// --- Start ---

const versions = {};

async function start() {
  const response = await fetch("index.json");
  const index = await response.json();
  for (const { name, version } of index.packages) versions[name] = version;
  byId("versions").textContent = index.packages
    .map(({ name, version, license }) => `${name} ${version} (${license})`)
    .join(", ");
  await ask("start", { index });
  choices = await call("choices");
  options(
    byId("choice"),
    choices.choices.map(({ name }) => name),
  );
  options(byId("target-name"), choices.targets);
  options(byId("for-runtime"), choices.runtimes, "any");
  byId("opset").max = choices.newest_opset;
  showChoice();
  byId("loading").hidden = true;
  document.documentElement.dataset.ready = Math.round(performance.now());
}

listen({
  onProgress: (value, step) => {
    byId("progress").value = value;
    byId("progress-label").textContent = step;
  },
  onStatus: showStatus,
  onError: showError,
});
const ready = start();
ready.catch((error) => {
  byId("loading").hidden = true;
  showError(`The page could not be started: ${error.message}`);
});

byId("file").addEventListener("change", (event) => openFiles([...event.target.files]));
for (const button of document.querySelectorAll("[data-sample]")) {
  button.addEventListener("click", () => openSample(button.dataset.sample));
}
byId("choice").addEventListener("change", showChoice);
byId("target-form").addEventListener("submit", (event) => {
  event.preventDefault();
  patch();
});
byId("compare-form").addEventListener("submit", (event) => {
  event.preventDefault();
  compare();
});
for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    const text = byId(button.dataset.copy).textContent;
    try {
      await navigator.clipboard.writeText(text);
      showStatus("Copied.");
    } catch {
      getSelection().selectAllChildren(byId(button.dataset.copy));
      showStatus("Selected: copy it with the keyboard.");
    }
  });
}

const drop = byId("drop");
for (const type of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(type, (event) => {
    event.preventDefault();
    drop.classList.toggle("over", type === "dragover");
    if (type === "drop") openFiles([...event.dataTransfer.files]);
  });
}
