// onnxruntime-web's WASM in node: the protocol of worker.py. Called with the folder that npm installed into.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { readFileSync, writeSync } from "node:fs";
import { pathToFileURL } from "node:url";

const require = createRequire(process.argv[2] + "/");
const ort = await import(pathToFileURL(require.resolve("onnxruntime-web").replace(/\.js$/, ".mjs")));
ort.env.wasm.numThreads = 1;
console.log = console.error;

const TYPES = {
  float32: Float32Array, float64: Float64Array, int64: BigInt64Array, int32: Int32Array, uint8: Uint8Array,
  int8: Int8Array, bool: Uint8Array,
};

function decode({ type, shape, data }) {
  const bytes = Uint8Array.from(Buffer.from(data, "base64"));
  return new ort.Tensor(type, new TYPES[type](bytes.buffer), shape);
}

function encode({ type, dims, data }) {
  const bytes = Buffer.from(data.buffer, data.byteOffset, data.byteLength);
  return { type, shape: dims, data: bytes.toString("base64") };
}

async function answer(job) {
  const session = await ort.InferenceSession.create(new Uint8Array(readFileSync(job.model)), {
    executionProviders: ["wasm"],
  });
  try {
    const outputs = [];
    for (const feed of job.feeds) {
      const inputs = Object.fromEntries(Object.entries(feed).map(([name, array]) => [name, decode(array)]));
      const found = await session.run(inputs);
      outputs.push(job.outputs.map((name) => encode(found[name])));
    }
    return { outputs };
  } finally {
    await session.release();
  }
}

const say = (value) => {
  const line = Buffer.from(JSON.stringify(value) + "\n");
  for (let at = 0; at < line.length; ) {
    try {
      at += writeSync(1, line, at);
    } catch (error) {
      if (error.code !== "EAGAIN") throw error;
    }
  }
};
say({});
for await (const line of createInterface({ input: process.stdin })) {
  say(await answer(JSON.parse(line)).catch((error) => ({ error: String(error) })));
}
