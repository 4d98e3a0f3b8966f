// Reads numpy's .npz files of f32, and compares tensors.

// Returns the tensors by name, without the names' `.npy`.
export async function readNpz(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  // the end record has no comment in files of numpy
  let at = bytes.length - 22;
  if (view.getUint32(at, true) !== 0x06054b50) throw new Error('npz: no end record');
  const count = view.getUint16(at + 10, true);
  at = view.getUint32(at + 16, true);
  const tensors = {};
  for (let entry = 0; entry < count; entry += 1) {
    const method = view.getUint16(at + 10, true);
    const packed = view.getUint32(at + 20, true);
    const [nameBytes, extra, comment] = [28, 30, 32].map((field) => view.getUint16(at + field, true));
    const local = view.getUint32(at + 42, true);
    const name = new TextDecoder().decode(bytes.subarray(at + 46, at + 46 + nameBytes));
    const data = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
    tensors[name.replace(/\.npy$/, '')] = readNpy(await inflate(bytes.subarray(data, data + packed), method), name);
    at += 46 + nameBytes + extra + comment;
  }
  return tensors;
}

async function inflate(bytes, method) {
  if (method === 0) return bytes;
  if (method !== 8) throw new Error(`npz: method=${method}, neither stored nor deflated`);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate-raw'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

export function readNpy(bytes, name) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const [length, start] = bytes[6] === 1 ? [view.getUint16(8, true), 10] : [view.getUint32(8, true), 12];
  const header = new TextDecoder().decode(bytes.subarray(start, start + length));
  if (!/'descr': '<f4'/.test(header) || !/'fortran_order': False/.test(header)) {
    throw new Error(`${name}: header=${header.trim()}, f32 in C's order is needed`);
  }
  const shape = [...header.match(/'shape': \(([^)]*)\)/)[1].matchAll(/\d+/g)].map(([size]) => Number(size));
  const values = new Uint8Array(bytes.subarray(start + length));
  return { shape, data: new Float32Array(values.buffer, 0, values.byteLength / 4) };
}

// The tensors of an npz of this project's models, in the order of the file, that are inputs (`in__`) or outputs (`out__`).
export function tensorsOf(npz, prefix) {
  return Object.entries(npz).filter(([name]) => name.startsWith(prefix)).map(([, tensor]) => tensor);
}

// An output that is below it everywhere is measured as if it reached it, as by the program tract-deconv: it holds little but
// the rounding errors of earlier operators.
const LEAST_SCALE = 1e-2;

// The largest difference, relative to the largest expected value. Infinite where shapes differ or a value is no number.
export function difference(tensor, expected) {
  if (tensor.shape.join() !== expected.shape.join() || tensor.data.length !== expected.data.length) return Infinity;
  let [worst, largest] = [0, 0];
  for (let at = 0; at < expected.data.length; at += 1) {
    const off = Math.abs(tensor.data[at] - expected.data[at]);
    if (Number.isNaN(off)) return Infinity;
    worst = Math.max(worst, off);
    largest = Math.max(largest, Math.abs(expected.data[at]));
  }
  return worst / Math.max(largest, LEAST_SCALE);
}
