// The module's functions (src/lib.rs) as classes. A tensor is { shape, data } with data a Float32Array.

const MOST_AXES = 8;

// The most bytes that crypto.getRandomValues takes.
const RANDOM_BYTES = 65536;

export class Engine {
  // `module` is the bytes of engine.wasm, or their WebAssembly.Module.
  static async of(module) {
    const compiled = module instanceof WebAssembly.Module ? module : await WebAssembly.compile(module);
    const random = (pointer, count) => {
      for (let at = 0; at < count; at += RANDOM_BYTES) {
        const bytes = Math.min(RANDOM_BYTES, count - at);
        crypto.getRandomValues(new Uint8Array(exports.memory.buffer, pointer + at, bytes));
      }
    };
    const { exports } = await WebAssembly.instantiate(compiled, { host: { random } });
    return new Engine(exports);
  }

  constructor(exports) {
    this.exports = exports;
  }

  // Loads an ONNX file for stock tract, or for tract with the plugin. `shapes` fixes the sizes of the inputs.
  load(file, { plugin, shapes = [] }) {
    const words = Uint32Array.from(shapes.flatMap((shape) => [shape.length, ...shape]));
    const session = this.lend([file, words], (bytes, sizes) =>
      this.exports.load(bytes, file.byteLength, plugin, sizes, words.length));
    return new Session(this, this.check(session));
  }

  // Copies arrays into the module's memory for the time of a call.
  lend(arrays, call) {
    const lent = arrays.map((array) => [this.check(this.exports.allocate(array.byteLength)), array.byteLength]);
    try {
      // memory that grew is another buffer
      arrays.forEach((array, at) => {
        const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
        new Uint8Array(this.exports.memory.buffer, lent[at][0], array.byteLength).set(bytes);
      });
      return call(...lent.map(([pointer]) => pointer));
    } finally {
      lent.forEach(([pointer, bytes]) => this.exports.release(pointer, bytes));
    }
  }

  // Throws the module's message where a call returned null or false.
  check(result) {
    if (result) return result;
    const at = this.exports.allocate(4);
    const pointer = this.exports.message(at);
    const bytes = new Uint32Array(this.exports.memory.buffer, at, 1)[0];
    this.exports.release(at, 4);
    throw new Error(new TextDecoder().decode(new Uint8Array(this.exports.memory.buffer, pointer, bytes)));
  }
}

class Session {
  constructor(engine, session) {
    this.engine = engine;
    this.session = session;
  }

  set(inputs) {
    inputs.forEach(({ shape, data }, slot) => {
      const sizes = Uint32Array.from(shape);
      this.engine.check(this.engine.lend([sizes, data], (words, values) =>
        this.engine.exports.set_input(this.session, slot, words, shape.length, values)));
    });
  }

  // Returns the number of outputs.
  run() {
    const count = this.engine.exports.run(this.session);
    this.engine.check(count >= 0);
    return count;
  }

  // A copy of an output of the last run.
  output(slot) {
    const { exports } = this.engine;
    const bytes = 4 * (1 + MOST_AXES);
    const words = this.engine.check(exports.allocate(bytes));
    try {
      const values = this.engine.check(exports.output(this.session, slot, words));
      const [rank, ...sizes] = new Uint32Array(exports.memory.buffer, words, 1 + MOST_AXES);
      const shape = sizes.slice(0, rank);
      const count = shape.reduce((product, size) => product * size, 1);
      return { shape, data: new Float32Array(exports.memory.buffer, values, count).slice() };
    } finally {
      exports.release(words, bytes);
    }
  }

  close() {
    this.engine.exports.close(this.session);
  }
}
