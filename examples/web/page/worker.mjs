// Loads a model into both engines, compares their answers with the stored ones, and times them on an input of the page.

import { Engine } from './engine.mjs';
import { difference, readNpz, tensorsOf } from './npz.mjs';

const ENGINES = { stock: false, plugin: true };
const RUNS = 15;

async function bytesOf(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return new Uint8Array(await response.arrayBuffer());
}

const engine = bytesOf('engine.wasm').then(Engine.of);

function answer(session, inputs) {
  session.set(inputs);
  session.run();
  return session.output(0);
}

async function work(model, input) {
  const [file, npz] = await Promise.all(['model.onnx', 'io.npz'].map((name) => bytesOf(`models/${model}/${name}`)));
  const stored = await readNpz(npz);
  const sessions = {};
  const result = { model, check: {}, milliseconds: {}, outputs: {} };
  let done = 0;
  const progress = () => postMessage({ model, progress: (done += 1) / (2 + RUNS) });
  for (const [name, plugin] of Object.entries(ENGINES)) {
    const session = (await engine).load(file, { plugin });
    const checked = answer(session, tensorsOf(stored, 'in__'));
    result.check[name] = { output: checked, difference: difference(checked, tensorsOf(stored, 'out__')[0]) };
    result.outputs[name] = answer(session, [input]);
    result.milliseconds[name] = [];
    sessions[name] = session;
    progress();
  }
  // in turns, so that whatever else the machine does slows both
  for (let run = 0; run < RUNS; run += 1) {
    for (const [name, session] of Object.entries(sessions)) {
      const begin = performance.now();
      session.run();
      result.milliseconds[name].push(performance.now() - begin);
    }
    progress();
  }
  Object.values(sessions).forEach((session) => session.close());
  return result;
}

onmessage = ({ data: { model, input } }) => {
  work(model, input).then(
    (result) => postMessage({ model, result }),
    (error) => postMessage({ model, error: String(error) }),
  );
};
