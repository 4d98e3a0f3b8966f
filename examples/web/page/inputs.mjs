// What the page gives to the models, as tensors of f32.

const mix = (a, b, t) => a.map((value, at) => value + (b[at] - value) * t);

// An evening at sea: three planes of colours from 0 to 1.
export function sunset(width, height) {
  const data = new Float32Array(3 * width * height);
  const horizon = 0.62 * height;
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      const [u, v] = [(x + 0.5) / width, (y + 0.5) / height];
      const sun = Math.hypot((u - 0.62) * width, (v - 0.5) * height) / height;
      const hills = horizon / height - 0.09 - 0.06 * Math.sin(13 * u) - 0.035 * Math.sin(27 * u + 1);
      let colour;
      if (y > horizon) {
        const glitter = 0.5 + 0.5 * Math.sin(170 * v) * Math.cos(42 * u + 80 * v);
        const sea = mix([24, 60, 110], [8, 24, 60], (y - horizon) / (height - horizon));
        colour = mix(sea, [255, 190, 110], glitter * Math.exp(-(((u - 0.62) * 11) ** 2)));
      } else if (v > hills) colour = [48, 32, 66];
      else if (sun < 0.16) colour = [255, 226, 150];
      else colour = mix([62, 58, 122], [250, 140, 92], (y / horizon) ** 2);
      colour.forEach((value, plane) => { data[(plane * height + y) * width + x] = value / 255; });
    }
  }
  return { shape: [1, 3, height, width], data };
}

// Forty bands whose levels swell and fade at random, but the same at each call.
export function randomSpectrogram(frames) {
  let state = 1;
  const random = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
  const data = new Float32Array(40 * frames);
  for (let band = 0; band < 40; band += 1) {
    const [rate, phase, level] = [1 + 5 * random(), 6.28 * random(), 0.5 + random()];
    for (let frame = 0; frame < frames; frame += 1) {
      const swell = Math.sin((6.28 * rate * frame) / frames + phase) * Math.sin((3.14 * frame) / frames);
      data[band * frames + frame] = 1.5 * level * swell;
    }
  }
  return { shape: [1, 40, frames], data };
}
