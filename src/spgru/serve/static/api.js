// Requests to the server that this page came from. Every failure is an Error with a sentence.

const BUSY = 429;
const TRIES = 4;

export class Cancelled extends Error {}

async function send(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw new Cancelled();
    throw new Error("The server does not answer. Is spgru serve still running? Start it, then try again.");
  }
}

// Waits and asks again while the server is busy.
async function ask(path, options) {
  for (let attempt = 1; ; attempt++) {
    const response = await send(path, options);
    if (response.ok) return response;
    if (response.status === BUSY && attempt < TRIES) {
      await new Promise((done) => setTimeout(done, 300 * attempt));
      continue;
    }
    const text = await response.text();
    let message = text;
    try { message = JSON.parse(text).error; } catch { /* not ours: shown as it is */ }
    throw new Error(sentence(message || `The server answered ${response.status}.`));
  }
}

function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}

export async function getJson(path) {
  return (await ask(path)).json();
}

export function postJson(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return ask(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

export function postBytes(path, body, signal) {
  const headers = { "Content-Type": "application/octet-stream" };
  return ask(path, { method: "POST", headers, body, signal });
}
