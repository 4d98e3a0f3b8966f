// Times WebAssembly engines in Node, one thread, in turns: onnxruntime-web, tfjs with its wasm backend, stock tract and tract
// with the plugin. Prints a table of Markdown.
//
//   npm install --ignore-scripts
//   ../../../examples/web/module.sh engine.wasm --features all-types
//   node compare.mjs engine.wasm FOLDER ...
//
// A folder is one of models/, or one that make_models.py filled (.cache/ROW). SECONDS is the time for each engine on each
// folder, and ENGINES names some of the engines. What is timed is a call as a user makes it: inputs are copied in and results
// out. Each engine's answer is compared with the stored one first.

import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { cpus } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Engine } from '../../../examples/web/page/engine.mjs';
import { difference, readNpy, readNpz, tensorsOf } from '../../../examples/web/page/npz.mjs';
import { initialisers } from './onnx.mjs';

const HERE = dirname(fileURLToPath(import.meta.url));
const require = createRequire(import.meta.url);
const TOLERANCE = 1e-4;
const SECONDS = Number(process.env.SECONDS ?? 1);
const LABELS = { onnxruntime: 'onnxruntime-web', tfjs: 'tfjs', stock: 'stock tract', plugin: 'plugin' };
const engines = process.env.ENGINES?.split(',') ?? Object.keys(LABELS);

class Unsupported extends Error {}

async function onnxruntime() {
  const ort = require('onnxruntime-web');
  ort.env.wasm.numThreads = 1;
  return async ({ model, inputs }) => {
    const session = await ort.InferenceSession.create(model, { executionProviders: ['wasm'], graphOptimizationLevel: 'all' });
    return async () => {
      const feed = session.inputNames.map((name, at) => [name, new ort.Tensor('float32', inputs[at].data, inputs[at].shape)]);
      const result = (await session.run(Object.fromEntries(feed)))[session.outputNames[0]];
      return { shape: [...result.dims], data: result.data };
    };
  };
}

// Layers of one group with one or two spatial axes. Data and weights are given in the order that it computes in.
async function tfjs() {
  const tf = require('@tensorflow/tfjs-core');
  const wasm = require('@tensorflow/tfjs-backend-wasm');
  wasm.setWasmPaths(join(HERE, 'node_modules/@tensorflow/tfjs-backend-wasm/dist/'));
  wasm.setThreadsCount(1);
  await tf.setBackend('wasm');
  await tf.ready();
  return async ({ row, model, inputs: [input] }) => {
    if (!row?.op) throw new Unsupported('reads no ONNX');
    const depthwise = row.op === 'conv' && row.group === row.in_channels && row.group === row.out_channels;
    const rank = row.kernel.length;
    if (row.layout !== 'NCX' || rank > 2 || (row.group > 1 && !depthwise)) throw new Unsupported('no such kernel');
    const flat = (sizes, fill) => (rank === 1 ? [fill, ...sizes] : sizes);
    const [begins, ends] = [flat(row.pads.slice(0, rank), 0), flat(row.pads.slice(rank), 0)];
    const pad = [[0, 0], ...begins.map((begin, axis) => [begin, ends[axis]]), [0, 0]];
    const [kernel, strides, dilations] = [row.kernel, row.strides, row.dilations].map((sizes) => flat(sizes, 1));
    if (row.op !== 'conv' && dilations.some((dilation) => dilation > 1)) throw new Unsupported('no such kernel');
    const [weights, bias] = initialisers(model);
    const filter = tf.tidy(() => {
      const [first, second] = weights.shape;
      const given = tf.tensor(weights.data, [first, second, ...kernel]);
      // to y, x, out, in for transposed ones, y, x, in, out for forward ones, and y, x, channel, 1
      return tf.transpose(given, depthwise ? [2, 3, 0, 1] : [2, 3, 1, 0]);
    });
    const shift = tf.tensor1d(bias.data);
    const channelsLast = [0, 2, 3, 1];
    const shape = [row.batch, row.in_channels, ...flat(row.input_spatial, 1)];
    const data = tf.transpose(tf.tensor(input.data, shape), channelsLast).dataSync();
    const dataShape = channelsLast.map((axis) => shape[axis]);
    const outputShape = [row.batch, ...flat(row.output_spatial, 1), row.out_channels];
    const run = () => tf.tidy(() => {
      const x = tf.tensor(data, dataShape);
      if (depthwise) return tf.add(tf.depthwiseConv2d(x, filter, strides, pad, 'NHWC', dilations), shift);
      if (row.op === 'conv') return tf.add(tf.conv2d(x, filter, strides, pad, 'NHWC', dilations), shift);
      return tf.add(tf.conv2dTranspose(x, filter, outputShape, strides, pad), shift);
    });
    const answer = async () => {
      const y = run();
      const result = { data: y.dataSync(), shape: y.shape };
      y.dispose();
      return result;
    };
    // what is compared is in the order of the stored answer
    answer.comparable = (result) => tf.tidy(() => {
      const y = tf.transpose(tf.tensor(result.data, result.shape), [0, 3, 1, 2]);
      return { shape: [row.batch, row.out_channels, ...row.output_spatial], data: y.dataSync() };
    });
    return answer;
  };
}

function tract(module, plugin) {
  return async ({ model, inputs }) => {
    const session = (await Engine.of(module)).load(model, { plugin, shapes: inputs.map(({ shape }) => shape) });
    return async () => {
      session.set(inputs);
      session.run();
      return session.output(0);
    };
  };
}

async function read(folder, rows) {
  const name = basename(folder);
  const model = new Uint8Array(await readFile(join(folder, 'model.onnx')));
  if (existsSync(join(folder, 'io.npz'))) {
    const npz = await readNpz(new Uint8Array(await readFile(join(folder, 'io.npz'))));
    return { name, model, inputs: tensorsOf(npz, 'in__'), expected: tensorsOf(npz, 'out__')[0] };
  }
  const npy = async (file) => readNpy(new Uint8Array(await readFile(join(folder, file))), file);
  const inputs = [await npy('x.npy')];
  return { name, model, inputs, expected: await npy('y.npy'), row: rows.find((row) => row.name === name) };
}

const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];

// Milliseconds of each engine's calls, or why there are none.
async function times(task, loaders) {
  const running = {};
  const found = {};
  for (const [name, load] of Object.entries(loaders)) {
    try {
      const answer = await load(task);
      const result = await answer();
      const off = difference(answer.comparable?.(result) ?? result, task.expected);
      if (!(off <= TOLERANCE)) throw new Error(`off by ${off.toExponential(1)}`);
      running[name] = answer;
      found[name] = [];
    } catch (error) {
      found[name] = error instanceof Unsupported ? '–' : String(error.message ?? error).slice(0, 60);
    }
  }
  const end = performance.now() + 1000 * SECONDS * Object.keys(running).length;
  for (let turn = 0; turn < 2 || performance.now() < end; turn += 1) {
    for (const [name, answer] of Object.entries(running)) {
      // the first call after another engine's finds its data gone from the caches
      await answer();
      for (let call = 0; call < 3; call += 1) {
        const begin = performance.now();
        await answer();
        // until the engines' code is optimised
        if (turn > 0) found[name].push(performance.now() - begin);
      }
    }
  }
  return Object.fromEntries(Object.entries(found).map(([name, value]) => [name, Array.isArray(value) ? median(value) : value]));
}

const [file, ...folders] = process.argv.slice(2);
const module = await WebAssembly.compile(await readFile(file));
const makers = { onnxruntime, tfjs, stock: () => tract(module, false), plugin: () => tract(module, true) };
const loaders = {};
for (const name of engines) loaders[name] = await makers[name]();
const { operators } = JSON.parse(await readFile(join(HERE, '../../workloads.json')));
const peers = engines.filter((name) => name !== 'plugin');

console.log(`Node ${process.version}, ${cpus()[0].model}; medians in ms\n`);
console.log(`| model | ${engines.map((name) => LABELS[name]).join(' | ')} | ${peers.map((name) => `of ${LABELS[name]}`).join(' | ')} |`);
console.log(`|---|${'---:|'.repeat(engines.length + peers.length)}`);
const ratios = Object.fromEntries(peers.map((name) => [name, []]));
for (const folder of folders) {
  let task;
  try {
    task = await read(folder, operators);
  } catch (error) {
    // such as inputs of integers
    console.log(`| ${basename(folder)} | ${error.message} |`);
    continue;
  }
  const taken = await times(task, loaders);
  const speeds = peers.map((name) => {
    if (!(taken[name] > 0 && taken.plugin > 0)) return '';
    ratios[name].push(taken[name] / taken.plugin);
    return `${(taken[name] / taken.plugin).toFixed(2)}×`;
  });
  const shown = engines.map((name) => (taken[name] > 0 ? taken[name].toFixed(3) : taken[name]));
  console.log(`| ${task.name} | ${[...shown, ...speeds].join(' | ')} |`);
}
const mean = (values) => Math.exp(values.reduce((sum, value) => sum + Math.log(value), 0) / values.length);
const means = peers.map((name) => (ratios[name].length ? `${mean(ratios[name]).toFixed(2)}×` : ''));
console.log(`| geometric mean | ${[...engines.map(() => ''), ...means].join(' | ')} |`);
process.exit(0);
