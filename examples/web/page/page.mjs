// Draws the inputs, has the worker run the models, and shows what comes back.

import { randomSpectrogram, sunset } from './inputs.mjs';

// Of the largest value, as the project's tests of models have it.
const TOLERANCE = 1e-4;
const SAMPLE_RATE = 22050;
const MODELS = { upscale4: sunset(240, 160), vocoder: randomSpectrogram(172) };
const LABELS = { upscale4: '240 × 160 to 960 × 640', vocoder: '2 s of sound' };
const SHOW = { upscale4: showPicture, vocoder: showSound };

const worker = new Worker('worker.mjs', { type: 'module' });
const [progress, button] = ['progress', 'run'].map((id) => document.getElementById(id));
const rows = document.querySelector('tbody');

// What a test reads.
window.outcome = null;

function runModel(model, input, report) {
  return new Promise((resolve, reject) => {
    worker.onmessage = ({ data }) => {
      if (data.error) reject(new Error(data.error));
      else if (data.result) resolve(data.result);
      else report(data.progress);
    };
    worker.onerror = (event) => reject(new Error(event.message || 'the worker does not start'));
    worker.postMessage({ model, input });
  });
}

function median(values) {
  return [...values].sort((a, b) => a - b)[values.length >> 1];
}

function cells(texts) {
  return texts.map((text) => Object.assign(document.createElement('td'), { textContent: text }));
}

function showRow({ model, check, milliseconds }) {
  const [stock, plugin] = [median(milliseconds.stock), median(milliseconds.plugin)];
  const worst = Math.max(check.stock.difference, check.plugin.difference);
  const right = worst <= TOLERANCE;
  const row = document.createElement('tr');
  row.append(...cells([LABELS[model], `${stock.toFixed(1)} ms`, `${plugin.toFixed(1)} ms`,
    `${(stock / plugin).toFixed(1)} ×`, `${worst.toExponential(1)} of the largest value`]));
  if (!right) {
    row.className = 'failed';
    row.lastChild.textContent += ': wrong';
  }
  rows.append(row);
  return right;
}

function showPicture({ shape: [, , height, width], data }, section) {
  const pixels = new Uint8ClampedArray(4 * width * height).fill(255);
  for (let colour = 0; colour < 3; colour += 1) {
    for (let at = 0; at < width * height; at += 1) pixels[4 * at + colour] = 255 * data[colour * width * height + at];
  }
  const canvas = Object.assign(section.querySelector('canvas'), { width, height });
  canvas.getContext('2d').putImageData(new ImageData(pixels, width, height), 0, 0);
}

function showSound({ data }, section) {
  const canvas = Object.assign(section.querySelector('canvas'), { width: 900, height: 300 });
  const context = canvas.getContext('2d');
  const largest = data.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  context.fillStyle = '#3b5bdb';
  for (let x = 0; x < 900; x += 1) {
    const part = data.subarray((x * data.length) / 900, ((x + 1) * data.length) / 900);
    const [low, high] = [Math.min(...part), Math.max(...part)];
    context.fillRect(x, 150 - (140 * high) / largest, 1, Math.max(1, (140 * (high - low)) / largest));
  }
  section.querySelector('audio').src = URL.createObjectURL(wav(data, largest));
}

// 16-bit samples, at half of the full scale.
function wav(samples, largest) {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const text = (at, letters) => [...letters].forEach((letter, ix) => view.setUint8(at + ix, letter.charCodeAt(0)));
  text(0, 'RIFF');
  view.setUint32(4, 36 + 2 * samples.length, true);
  text(8, 'WAVEfmt ');
  [[16, 16, 4], [20, 1, 2], [22, 1, 2], [24, SAMPLE_RATE, 4], [28, 2 * SAMPLE_RATE, 4], [32, 2, 2], [34, 16, 2]]
    .forEach(([at, value, bytes]) => (bytes === 2 ? view.setUint16(at, value, true) : view.setUint32(at, value, true)));
  text(36, 'data');
  view.setUint32(40, 2 * samples.length, true);
  samples.forEach((value, ix) => view.setInt16(44 + 2 * ix, (16383 * value) / largest, true));
  return new Blob([view], { type: 'audio/wav' });
}

async function run() {
  button.disabled = true;
  window.outcome = null;
  rows.replaceChildren();
  const outcome = { right: true, results: {}, progress: [], frames: 0 };
  const count = () => {
    outcome.frames += 1;
    if (button.disabled) requestAnimationFrame(count);
  };
  requestAnimationFrame(count);
  try {
    const models = Object.entries(MODELS);
    for (const [at, [model, input]] of models.entries()) {
      const result = await runModel(model, input, (part) => {
        progress.value = (at + part) / models.length;
        outcome.progress.push(progress.value);
      });
      outcome.results[model] = result;
      outcome.right = showRow(result) && outcome.right;
      SHOW[model](result.outputs.plugin, document.getElementById(model));
    }
  } catch (error) {
    outcome.error = String(error);
    rows.append(Object.assign(document.createElement('tr'), { className: 'failed', textContent: outcome.error }));
  }
  button.disabled = false;
  window.outcome = outcome;
}

button.onclick = run;
run();
