// Runs a WebAssembly module of wasm32-wasip1 under Node with the arguments that follow, as Cargo's runner does.
//
//   node tools/wasm/run.mjs MODULE [ARGUMENT ...]
//
// The module sees the environment of this process, the folder in which it runs, and the folders beside that one.
import { readFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import { WASI } from 'node:wasi';

const [module, ...args] = process.argv.slice(2);
const here = process.cwd();
const wasi = new WASI({
  version: 'preview1',
  args: [module, ...args],
  env: { ...process.env, PWD: here },
  preopens: { '.': here, [here]: here, [dirname(here)]: dirname(here) },
  returnOnExit: true,
});
// What Debian's C library lacks (absent.txt): no threads, and no path is resolved.
const UNSUPPORTED = 52;
const env = new Proxy({}, { get: (_, name) => () => (name === 'realpath' ? 0 : UNSUPPORTED) });
const { instance } = await WebAssembly.instantiate(await readFile(module), { ...wasi.getImportObject(), env });
process.exitCode = wasi.start(instance);
