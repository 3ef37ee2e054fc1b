// Asks the server for a clip: a sequence with the prediction of a network.

import { postBytes, postJson } from "./api.js";
import { asRequest } from "./digits.js";
import { decode, encode } from "./frames.js";

// `form`: json, gif or npz. `upload` is what upload.js gives; without a file the digits are sent.
export function askFor(names, form, state, boundary, upload, signal) {
  if (upload.file) {
    const query = new URLSearchParams({
      networks: names.join(","), which: upload.which, variance: state.variance, draws: state.draws, as: form,
    });
    return postBytes(`/api/sequence?${query}`, upload.file.bytes, signal);
  }
  const { variance, draws, noise } = state;
  const digits = state.movers.map((mover) => asRequest(mover, encode));
  return postJson(`/api/scene?as=${form}`, { networks: names, variance, draws, noise, boundary, digits }, signal);
}

export async function askClip(name, state, boundary, upload, signal) {
  const start = performance.now();
  const { file } = upload;
  const found = await (await askFor([name], "json", state, boundary, upload, signal)).json();
  const predictions = found.predictions.map((one) => ({ ...one, mean: decode(one.mean), std: decode(one.std) }));
  return {
    ...found, predictions, file,
    seen: decode(found.seen), truth: found.truth && decode(found.truth),
    images: found.images.map(decode), answered: performance.now() - start,
  };
}
