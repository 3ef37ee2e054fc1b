// Frames as pictures: bytes from the server, painted in grey or by the map of uncertainty.

export const SIZE = 64;
export const HALF = 10;

let colours = [[0, 0, 0], [255, 255, 255]];

export function setColours(table) {
  colours = table;
}

export function decode(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

export function encode(bytes) {
  return btoa(String.fromCharCode(...bytes));
}

const grey = (value) => [value, value, value];
const heat = (value) => colours[Math.round((value / 255) * (colours.length - 1))];
export const MAPS = { grey, heat };

// One picture of size x size, number k of `bytes`, at (left, 0) of the canvas.
export function paint(canvas, bytes, k = 0, map = grey, size = SIZE, left = 0) {
  const context = canvas.getContext("2d");
  const image = context.createImageData(size, size);
  for (let p = 0; p < size * size; p++) {
    const colour = map(bytes[k * size * size + p]);
    image.data.set([colour[0], colour[1], colour[2], 255], 4 * p);
  }
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
  for (let v = 0; v < 256; v++) image.data.set([...heat(v), 255], 4 * v);
  context.putImageData(image, 0, 0);
}
