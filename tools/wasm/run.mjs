// Runs a WebAssembly module of wasm32-wasip1 under Node with the arguments that follow, as Cargo's runner does.
//
//   node tools/wasm/run.mjs MODULE [ARGUMENT ...]
//
// The module sees the same folders and environment as this process.
import { readFile } from 'node:fs/promises';
import { WASI } from 'node:wasi';

const [module, ...args] = process.argv.slice(2);
const wasi = new WASI({
  version: 'preview1',
  args: [module, ...args],
  env: { ...process.env, PWD: process.cwd() },
  preopens: { '/': '/', '.': process.cwd() },
  returnOnExit: true,
});
const { instance } = await WebAssembly.instantiate(await readFile(module), wasi.getImportObject());
process.exitCode = wasi.start(instance);
