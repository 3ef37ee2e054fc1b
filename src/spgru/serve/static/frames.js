// Frames as pictures: bytes from the server, painted in grey or by the map of uncertainty.

export const SIZE = 64;
export const HALF = 10;

// A colour for each byte, as the four bytes of a pixel: red lowest, opaque.
const pixel = ([red, green, blue]) => (255 << 24) | (blue << 16) | (green << 8) | red;
const table = (colour) => Uint32Array.from({ length: 256 }, (_, value) => pixel(colour(value)));
export const MAPS = { grey: table((value) => [value, value, value]), heat: table(() => [0, 0, 0]) };

export function setColours(colours) {
  MAPS.heat = table((value) => colours[Math.round((value / 255) * (colours.length - 1))]);
}

export function decode(text) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let k = 0; k < bytes.length; k++) bytes[k] = letters.charCodeAt(k);
  return bytes;
}

export function encode(bytes) {
  return btoa(String.fromCharCode(...bytes));
}

// One picture of size x size, number k of `bytes`, at (left, 0) of the canvas.
export function paint(canvas, bytes, k = 0, map = MAPS.grey, size = SIZE, left = 0) {
  const context = canvas.getContext("2d");
  const image = context.createImageData(size, size);
  const pixels = new Uint32Array(image.data.buffer);
  const start = k * pixels.length;
  for (let p = 0; p < pixels.length; p++) pixels[p] = map[bytes[start + p]];
  context.putImageData(image, left, 0);
}

export function clear(canvas) {
  const context = canvas.getContext("2d");
  context.fillStyle = "#000";
  context.fillRect(0, 0, canvas.width, canvas.height);
}

// The map of uncertainty from 0 to 255, for a scale.
export function paintScale(canvas) {
  canvas.width = 256;
  canvas.height = 1;
  const context = canvas.getContext("2d");
  const image = context.createImageData(256, 1);
  new Uint32Array(image.data.buffer).set(MAPS.heat);
  context.putImageData(image, 0, 0);
}
