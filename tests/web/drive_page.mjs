// Use a built page in Chromium as a person would; print what happens as a line of JSON.
// Arguments: a file with {packages, chromium, url, otherUrl, files, downloads, screenshot}. `files` has the paths of the
// models by what they are for.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { basename } from "node:path";
import { pathToFileURL } from "node:url";

const job = JSON.parse(readFileSync(process.argv[2]));
const { chromium } = await import(pathToFileURL(`${job.packages}/node_modules/playwright-core/index.mjs`));
const TIMEOUT = 120_000;

const browser = await chromium.launch({ executablePath: job.chromium, args: ["--no-sandbox"] });
const context = await browser.newContext({ viewport: { width: 960, height: 900 }, acceptDownloads: true });
const page = await context.newPage();
page.setDefaultTimeout(TIMEOUT);
const messages = [];
const requests = [];
page.on("console", (message) => messages.push(`${message.type()}: ${message.text().slice(0, 300)}`));
page.on("pageerror", (error) => messages.push(`error: ${String(error).slice(0, 300)}`));
context.on("request", (request) => requests.push(request.url()));

const text = (selector) => page.textContent(selector).then((content) => content.trim());
const visible = (selector) => page.locator(selector).isVisible();

/** Wait until the page has finished a task. */
async function settled() {
  await page.waitForTimeout(50);
  await page.waitForFunction(() => !document.body.hasAttribute("aria-busy"), null, { timeout: TIMEOUT });
}

async function drop(path) {
  const data = await page.evaluateHandle(
    ({ name, base64 }) => {
      const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
      const transfer = new DataTransfer();
      transfer.items.add(new File([bytes], name));
      return transfer;
    },
    { name: basename(path), base64: readFileSync(path).toString("base64") },
  );
  await page.dispatchEvent("#drop", "drop", { dataTransfer: data });
  await settled();
}

async function choose(...paths) {
  await page.setInputFiles("#file", paths);
  await settled();
}

async function patch(target) {
  await page.selectOption("#choice", { index: 0 });
  await page.evaluate((name) => (document.getElementById("target-name").value = name), target);
  await page.click("#patch");
  await settled();
  const [download] = await Promise.all([page.waitForEvent("download"), page.click("#download")]);
  const bytes = readFileSync(await download.path());
  return {
    name: download.suggestedFilename(),
    sha256: createHash("sha256").update(bytes).digest("hex"),
    shown: await text("#result-sha-256"),
    command: await text("#command"),
  };
}

async function shownState() {
  return {
    verdict: (await visible("#nodes")) ? await text("#verdict") : "",
    notes: (await visible("#nodes")) ? await page.locator("#notes li").allTextContents() : [],
    error: (await visible("#error")) ? await text("#error") : "",
    offersPatch: await visible("#target"),
  };
}

/** Press Tab until an element has the focus. */
async function tabTo(selector) {
  for (let count = 0; count < 60; count++) {
    if (await page.evaluate((wanted) => document.activeElement?.matches(wanted), selector)) return;
    await page.keyboard.press("Tab");
  }
  throw new Error(`the keyboard does not reach ${selector}`);
}

/** Try to send something to another server, in all ways that a page and its workers have. */
function tryToEscape(name) {
  const args = { otherUrl: `${job.otherUrl}/${name}`, workerUrl: `${job.url}/worker.js` };
  return page.evaluate(async ({ otherUrl, workerUrl }) => {
    const outcome = (promise) =>
      Promise.race([
        promise.then(
          (value) => `sent (${value})`,
          () => "blocked",
        ),
        new Promise((resolve) => setTimeout(() => resolve("no answer"), 2000)),
      ]);
    const inWorker = (source) =>
      new Promise((resolve, reject) => {
        const blob = new Blob([source], { type: "text/javascript" });
        const worker = new Worker(URL.createObjectURL(blob), { type: "module" });
        worker.onmessage = ({ data }) => (data === "sent" ? resolve(data) : reject(data));
        worker.onerror = reject;
      });
    const loaded = (tag, name) =>
      new Promise((resolve, reject) => {
        const node = document.createElement(tag);
        node.onload = resolve;
        node.onerror = reject;
        node[name] = `${otherUrl}/${tag}`;
        if (tag === "link") node.rel = "stylesheet";
        document.body.append(node);
      });
    const submitted = () =>
      new Promise((resolve, reject) => {
        const form = document.createElement("form");
        Object.assign(form, { action: `${otherUrl}/form`, method: "post", target: "_blank" });
        document.body.append(form);
        document.addEventListener("securitypolicyviolation", reject, { once: true });
        form.submit();
      });
    const report = `.then(() => postMessage("sent"), (error) => postMessage(String(error)));`;
    return {
      fetch: await outcome(fetch(`${otherUrl}/fetch`, { mode: "no-cors" })),
      beacon: await outcome(
        new Promise((resolve, reject) => {
          document.addEventListener("securitypolicyviolation", reject, { once: true });
          if (!navigator.sendBeacon(`${otherUrl}/beacon`, "x")) reject();
        }),
      ),
      image: await outcome(loaded("img", "src")),
      script: await outcome(loaded("script", "src")),
      style: await outcome(loaded("link", "href")),
      frame: await outcome(loaded("iframe", "src")).then((result) => (result.startsWith("sent") ? "no answer" : result)),
      socket: await outcome(
        new Promise((resolve, reject) => {
          const socket = new WebSocket(`${otherUrl.replace("http", "ws")}/socket`);
          socket.onopen = resolve;
          socket.onerror = reject;
        }),
      ),
      form: await outcome(submitted()),
      import: await outcome(import(`${otherUrl}/import.js`)),
      blobWorker: await outcome(inWorker(`fetch("${otherUrl}/blob-worker", { mode: "no-cors" })${report}`)),
      blobWorkerImport: await outcome(inWorker(`import("${otherUrl}/worker-import.js")${report}`)),
      urlWorker: await outcome(
        new Promise((resolve, reject) => {
          const worker = new Worker(workerUrl, { type: "module" });
          worker.onmessage = resolve;
          worker.onerror = reject;
        }),
      ),
      eval: await outcome(
        new Promise((resolve, reject) => {
          try {
            resolve(new Function("return 1")());
          } catch (error) {
            reject(error);
          }
        }),
      ),
    };
  }, args);
}

const SCENARIOS = {
  /** A file that is dropped before Python is ready waits. */
  async early() {
    await page.goto(job.url, { waitUntil: "domcontentloaded" });
    await page.waitForSelector("#progress");
    const isReady = await page.evaluate(() => "ready" in document.documentElement.dataset);
    await drop(job.files.models[0][0]);
    const { verdict } = await shownState();
    await page.goto("about:blank");
    requests.length = 0;
    return { isReady, verdict };
  },

  async start() {
    await page.goto(job.url);
    await page.waitForFunction(() => document.documentElement.dataset.ready, null, { timeout: TIMEOUT });
    return {
      milliseconds: await page.evaluate(() => Number(document.documentElement.dataset.ready)),
      requests: [...requests],
      choices: await page.locator("#choice option").allTextContents(),
      versions: await text("#versions"),
    };
  },

  /** The sample that onnxruntime-web refuses, with the keyboard only. */
  async keyboard() {
    await tabTo("[data-sample=kornia_warp_perspective_float64]");
    await page.keyboard.press("Enter");
    await settled();
    const verdict = await text("#verdict");
    await tabTo("#patch");
    await page.keyboard.press("Enter");
    await settled();
    await tabTo("#compare");
    await page.keyboard.press("Enter");
    await settled();
    const focus = await page.evaluate(() => document.activeElement.id);
    if (job.screenshot) await page.screenshot({ path: job.screenshot, fullPage: true });
    return {
      verdict,
      focus,
      sentence: await text("#comparison-sentence"),
      runs: await text("#run-table"),
      differences: await text("#difference-table"),
    };
  },

  /** Drop, patch, download, compare. */
  async models() {
    const results = {};
    for (const [path, target] of job.files.models) {
      await drop(path);
      const { verdict } = await shownState();
      const result = await patch(target);
      const arrays = path.replace(/\.onnx$/, ".npz");
      await page.setInputFiles("#arrays", arrays);
      await page.click("#compare");
      await settled();
      await page.setInputFiles("#arrays", []);
      results[basename(path, ".onnx")] = { verdict, ...result, sentence: await text("#comparison-sentence") };
    }
    return results;
  },

  /** Without a stored answer: the model before the patch or onnx's evaluator is the judge. */
  async random() {
    const results = {};
    for (const [path, target] of job.files.models) {
      await choose(path);
      await patch(target);
      await page.click("#compare");
      await settled();
      results[basename(path, ".onnx")] = await text("#comparison-sentence");
    }
    return results;
  },

  async failures() {
    const states = {};
    for (const [name, path] of Object.entries(job.files.failures)) {
      await choose(path);
      states[name] = await shownState();
    }
    await choose(job.files.failures.external);
    await patch("primitives");
    await page.click("#compare");
    await settled();
    states.externalRun = await shownState();
    await choose(job.files.failures.external, job.files.externalData);
    await patch("primitives");
    await page.click("#compare");
    await settled();
    states.externalComplete = { ...(await shownState()), sentence: await text("#comparison-sentence") };
    return states;
  },

  /** A file of 2 GB, of which only the size is read. */
  async huge() {
    await page.evaluate(() => {
      const file = { name: "huge.onnx", size: 2e9 };
      const event = new Event("drop", { cancelable: true });
      document.dispatchEvent(Object.assign(event, { dataTransfer: { files: [file] } }));
    });
    await settled();
    return shownState();
  },

  async large() {
    await choose(job.files.large);
    const state = await shownState();
    const result = await patch("primitives");
    return { ...state, ...result };
  },

  async appearance() {
    const color = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    await page.emulateMedia({ colorScheme: "dark" });
    const dark = await color();
    await page.emulateMedia({ colorScheme: "light" });
    const light = await color();
    await page.setViewportSize({ width: 390, height: 844 });
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    await page.setViewportSize({ width: 960, height: 900 });
    const unnamed = await page.evaluate(() =>
      [...document.querySelectorAll("button, a, input, select, table, [role=region]")]
        .filter((node) => !node.labels?.length && !node.textContent.trim() && !node.ariaLabel)
        .map((node) => node.id || node.outerHTML.slice(0, 80)),
    );
    return { dark, light, overflow, unnamed };
  },

  /** Console messages so far; the attempts to escape log more. */
  async console() {
    return messages.filter((message) => !message.startsWith("log:"));
  },

  async escape() {
    return tryToEscape("policy");
  },

  /** The same in another page of the server, a list of files, which has no policy. */
  async escapeWithoutPolicy() {
    await page.goto(`${job.url}/samples/`);
    return tryToEscape("control");
  },
};

const results = {};
for (const [name, scenario] of Object.entries(SCENARIOS)) {
  if (name === "large" && !job.files.large) continue;
  const start = performance.now();
  try {
    results[name] = await scenario();
  } catch (error) {
    results[name] = { failed: String(error.stack ?? error).slice(0, 2000), messages };
    break;
  }
  console.error(`${name}: ${Math.round(performance.now() - start)} ms`);
}
console.log(JSON.stringify(results));
await browser.close();
