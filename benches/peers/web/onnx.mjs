// Reads of an ONNX file what tfjs needs: the initialisers.

// The fields of a protobuf message: [number, value] with a Uint8Array, or a number of up to 53 bits.
function* fields(bytes) {
  let at = 0;
  const varint = () => {
    let [value, factor] = [0, 1];
    for (;;) {
      const byte = bytes[at];
      at += 1;
      value += (byte & 0x7f) * factor;
      if (byte < 0x80) return value;
      factor *= 128;
    }
  };
  while (at < bytes.length) {
    const key = varint();
    const [number, type] = [key >> 3, key & 7];
    if (type === 0) yield [number, varint()];
    else {
      const length = type === 2 ? varint() : { 1: 8, 5: 4 }[type];
      yield [number, bytes.subarray(at, at + length)];
      at += length;
    }
  }
}

const all = (bytes, wanted) => [...fields(bytes)].filter(([number]) => number === wanted).map(([, value]) => value);

// The dims of a TensorProto, which may be packed.
function dims(tensor) {
  return all(tensor, 1).flatMap((value) => (typeof value === 'number' ? [value] : [...value]));
}

// The initialisers with raw f32 data, in the order of the file.
export function initialisers(model) {
  const [graph] = all(model, 7);
  return all(graph, 5).map((tensor) => {
    const raw = new Uint8Array(all(tensor, 9)[0]);
    return { shape: dims(tensor), data: new Float32Array(raw.buffer, 0, raw.byteLength / 4) };
  });
}
