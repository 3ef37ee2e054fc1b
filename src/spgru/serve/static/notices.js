// A message where something went wrong, with what to do.

export function showError(id, message) {
  const box = document.getElementById(id);
  box.textContent = message;
  box.hidden = !message;
}

export const hideError = (id) => showError(id, "");
