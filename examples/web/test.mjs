// Tests the page in a headless Chromium: serves a built folder, waits for the page's runs, and compares the tensors that the
// models gave there with their `io.npz` in models/. Then it does the same with a stored answer changed, and with a weight
// changed: the page has to call the one wrong, and this test the other.
//
//   node examples/web/test.mjs [FOLDER [PICTURE]]       target/web; a PNG of the page
//
// CHROMIUM names the browser. The exit code is 77 where the browser or the folder is not there.

import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { dirname, extname, join, normalize } from 'node:path';
import { fileURLToPath } from 'node:url';
import { difference, readNpz, tensorsOf } from './page/npz.mjs';

const ROOT = join(dirname(fileURLToPath(import.meta.url)), '../..');
const TOLERANCE = 1e-4;
const SECONDS = 120;
const MODELS = ['upscale4', 'vocoder'];
const NOTHING_TO_CHECK = 77;
const TYPES = { '.html': 'text/html', '.mjs': 'text/javascript', '.wasm': 'application/wasm' };

const [folder = join(ROOT, 'target/web'), picture] = process.argv.slice(2);
const browser = process.env.CHROMIUM ?? 'chromium';

// Serves the folder. `change` may alter what is sent.
function serve(change) {
  const server = createServer(async (request, response) => {
    const path = normalize(decodeURIComponent(new URL(request.url, 'http://page').pathname));
    const name = path === '/' ? '/index.html' : path;
    try {
      const bytes = await readFile(join(folder, name));
      response.writeHead(200, { 'content-type': TYPES[extname(name)] ?? 'application/octet-stream' });
      response.end(change(name, bytes));
    } catch {
      response.writeHead(404).end();
    }
  });
  return new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(server)));
}

// A browser that is spoken to over pipes: messages of JSON that end with a zero byte.
class Browser {
  constructor() {
    this.profile = mkdtempSync(join(tmpdir(), 'page-test-'));
    const flags = ['--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run',
      '--disable-background-networking', '--disable-component-update', '--disable-sync', '--disable-extensions',
      '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1', `--user-data-dir=${this.profile}`,
      '--window-size=1000,760', '--remote-debugging-pipe', 'about:blank'];
    this.process = spawn(browser, flags, { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });
    this.last = 0;
    this.waiting = new Map();
    this.requests = [];
    let text = '';
    this.process.stdio[4].setEncoding('utf8').on('data', (chunk) => {
      const messages = (text + chunk).split('\0');
      text = messages.pop();
      messages.forEach((message) => this.receive(JSON.parse(message)));
    });
  }

  receive({ id, method, params, result, error }) {
    if (method === 'Network.requestWillBeSent') this.requests.push(params.request.url);
    const waiting = this.waiting.get(id);
    if (!waiting) return;
    this.waiting.delete(id);
    if (error) waiting.reject(new Error(error.message));
    else waiting.resolve(result);
  }

  send(method, params = {}, sessionId = this.session) {
    this.last += 1;
    const id = this.last;
    this.process.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    return new Promise((resolve, reject) => this.waiting.set(id, { resolve, reject }));
  }

  async open(url) {
    const { targetId } = await this.send('Target.createTarget', { url: 'about:blank' });
    this.session = (await this.send('Target.attachToTarget', { targetId, flatten: true })).sessionId;
    await this.send('Network.enable');
    await this.send('Page.navigate', { url });
  }

  async value(expression) {
    const { result, exceptionDetails } = await this.send('Runtime.evaluate', { expression, returnByValue: true });
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  }

  async close() {
    this.process.kill('SIGKILL');
    await new Promise((resolve) => { this.process.once('exit', resolve); });
    rmSync(this.profile, { recursive: true, force: true, maxRetries: 5, retryDelay: 200 });
  }
}

// What the page's runs gave. Tensors cross as base64 of their bytes.
const OUTCOME = `window.outcome && JSON.stringify(window.outcome, (key, value) => value instanceof Float32Array
  ? btoa(new Uint8Array(value.buffer).reduce((text, byte) => text + String.fromCharCode(byte), '')) : value)`;

function tensor({ shape, data }) {
  const bytes = Buffer.from(data, 'base64');
  return { shape, data: new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length)) };
}

// Runs the page once. `change` may alter the files that it is served.
async function visit(change, file) {
  const server = await serve(change);
  const page = new Browser();
  try {
    const origin = `http://127.0.0.1:${server.address().port}/`;
    await page.open(origin);
    let text;
    for (const end = Date.now() + 1000 * SECONDS; !text; text = await page.value(OUTCOME)) {
      if (Date.now() > end) throw new Error(`page: seconds=${SECONDS}, it has not ended`);
      await new Promise((resolve) => { setTimeout(resolve, 200); });
    }
    const strangers = page.requests.filter((url) => !url.startsWith(origin) && !/^(data|blob):/.test(url));
    if (strangers.length > 0) throw new Error(`page: it asks for ${strangers}`);
    if (file) writeFileSync(file, Buffer.from((await page.send('Page.captureScreenshot')).data, 'base64'));
    const rows = await page.value('[...document.querySelectorAll("tbody tr")].map((row) => row.textContent)');
    return { ...JSON.parse(text), rows };
  } finally {
    await page.close();
    server.close();
  }
}

// What is wrong with a visit, by the files of the repository and not by those that the page was served.
async function faults(outcome) {
  const found = outcome.error ? [outcome.error] : [];
  for (const model of MODELS) {
    const expected = tensorsOf(await readNpz(await readFile(join(ROOT, 'models', model, 'io.npz'))), 'out__')[0];
    const { check, outputs, milliseconds } = outcome.results[model] ?? {};
    for (const engine of check ? ['stock', 'plugin'] : []) {
      const off = difference(tensor(check[engine].output), expected);
      if (!(off <= TOLERANCE)) found.push(`${model}, ${engine}: off by ${off} of the largest value`);
      if (!milliseconds[engine].every((time) => time >= 0)) found.push(`${model}, ${engine}: no times`);
    }
    if (!check) found.push(`${model}: no answer`);
    // the two engines agree on the page's own input
    else if (!(difference(tensor(outputs.plugin), tensor(outputs.stock)) <= TOLERANCE)) {
      found.push(`${model}: the engines differ on the page's input`);
    }
  }
  const { progress, frames } = outcome;
  if (!(progress.length > 10 && progress.every((value, at) => at === 0 || value > progress[at - 1]) && progress.at(-1) === 1)) {
    found.push(`progress: ${progress}, it does not rise to 1 in steps`);
  }
  // a worker that kept the page from drawing would leave a few
  if (!(frames > 10)) found.push(`frames: ${frames}, the page stood still`);
  return found;
}

// Changes the exponent of a value whose last byte is at a place.
function changed(suffix, at) {
  return (name, bytes) => {
    if (!name.endsWith(suffix)) return bytes;
    const copy = Buffer.from(bytes);
    copy[at(copy)] ^= 0x02;
    return copy;
  };
}

// The last of the stored values: outputs come after inputs, and the zip's directory after them.
const LAST_VALUE = (bytes) => bytes.readUInt32LE(bytes.length - 6) - 1;
// The bias of the vocoder's last layer: a tensor's name and then its four bytes.
const BIAS = 'post.biasJ\x04';
const WEIGHT = (bytes) => bytes.lastIndexOf(BIAS) + BIAS.length + 3;

function require(condition, text) {
  console.log(`${condition ? 'passed' : 'FAILED'}: ${text}`);
  if (!condition) process.exitCode = 1;
}

if (spawnSync(browser, ['--version'], { stdio: 'ignore' }).error) {
  console.log(`IGNORED: there is no ${browser}`);
  process.exit(NOTHING_TO_CHECK);
}
if (!existsSync(join(folder, 'engine.wasm'))) {
  console.log(`IGNORED: ${folder} has no engine.wasm: examples/web/build.sh`);
  process.exit(NOTHING_TO_CHECK);
}

const first = await visit((_name, bytes) => bytes, picture);
const found = await faults(first);
first.rows.forEach((row) => console.log(row));
require(found.length === 0 && first.right, `the page's tensors are those of io.npz ${found}`);

const otherAnswer = await visit(changed('vocoder/io.npz', LAST_VALUE));
require(!otherAnswer.right && otherAnswer.rows.some((row) => row.endsWith('wrong')), 'the page says where an answer is wrong');

const otherWeight = await visit(changed('vocoder/model.onnx', WEIGHT));
require((await faults(otherWeight)).some((fault) => fault.startsWith('vocoder, plugin')), 'this test finds a changed weight');
