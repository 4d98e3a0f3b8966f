// Tests the lanes of the module that vectors.sh builds, then times its register tiles.
//
//   node vectors.mjs MODULE
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';

const module = await WebAssembly.compile(await readFile(process.argv[2]));
const imports = {};
for (const { module: from, name } of WebAssembly.Module.imports(module)) (imports[from] ??= {})[name] = () => 0;
const { exports } = await WebAssembly.instantiate(module, imports);
const at = exports.memory_for_operands();
const singles = new Float32Array(exports.memory.buffer, at, 1 << 16);
const doubles = new Float64Array(exports.memory.buffer, at, 1 << 15);
const indices = new Uint32Array(exports.memory.buffer, at, 1 << 16);
// where functions find indices and write results, in bytes
const [lanes, to] = [32, 64];

singles.set([0, 1, 2, 3, 4, 5, 6, 7]);
exports.zipped_f32(at, at + 16, at + to);
assert.deepEqual([...singles.slice(16, 32)], [0, 4, 1, 5, 2, 6, 3, 7, 0, 2, 4, 6, 1, 3, 5, 7]);
for (let choice = 0; choice < 256; choice++) {
  const wanted = [choice & 3, (choice >> 2) & 3, (choice >> 4) & 3, choice >> 6];
  indices.set(wanted, lanes / 4);
  exports.permuted_f32(at, at + lanes, at + to);
  assert.deepEqual([...singles.slice(16, 20)], wanted);
}
doubles.set([0, 1, 2, 3]);
exports.zipped_f64(at, at + 16, at + to);
assert.deepEqual([...doubles.slice(8, 16)], [0, 2, 1, 3, 0, 2, 1, 3]);
for (let choice = 0; choice < 4; choice++) {
  const wanted = [choice & 1, choice >> 1];
  indices.set(wanted, lanes / 4);
  exports.permuted_f64(at, at + lanes, at + to);
  assert.deepEqual([...doubles.slice(8, 10)], wanted);
}
console.log('lanes: as expected');

const count = 400;
singles.fill(0.5);
const rates = [];
for (const name of Object.keys(exports).filter((name) => /_\d+x\d+$/.test(name))) {
  const [mr, nv] = name.match(/\d+/g).map(Number);
  exports[name](at, at + 65536, count, at + 131072);
  const results = [...singles.slice(32768, 32768 + 4 * mr * nv)];
  assert.ok(results.every((result) => result === count / 4), `${name}: ${results}`);
  singles.fill(0.5);
  const nanoseconds = (runs) => {
    const begin = process.hrtime.bigint();
    for (let run = 0; run < runs; run++) exports[name](at, at + 65536, count, at + 131072);
    return Number(process.hrtime.bigint() - begin) / runs;
  };
  nanoseconds(2000);
  const least = Math.min(...Array.from({ length: 40 }, () => nanoseconds(200)));
  singles.fill(0.5);
  rates.push([name, (mr * nv * count) / least]);
}
rates.sort((a, b) => b[1] - a[1]);
console.log('multiply-adds of four lanes per nanosecond:');
for (const [name, rate] of rates) console.log(`${name} ${rate.toFixed(2)}`);
