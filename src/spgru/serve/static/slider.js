// A slider with its label and its value in units.

let count = 0;

export function makeSlider({ label, min, max, step, value, format, onInput }) {
  const root = document.createElement("div");
  root.className = "slider";
  const id = `slider-${++count}`;
  const name = document.createElement("label");
  name.htmlFor = id;
  name.textContent = label;
  const output = document.createElement("output");
  output.htmlFor = id;
  const input = document.createElement("input");
  Object.assign(input, { id, type: "range", min, max, step });
  root.append(name, output, input);

  function show() {
    const text = format(Number(input.value));
    output.textContent = text;
    input.setAttribute("aria-valuetext", text);
  }
  function set(next) {
    input.value = next;
    show();
  }
  input.addEventListener("input", () => {
    show();
    onInput(Number(input.value));
  });
  set(value);
  return { root, input, set };
}
