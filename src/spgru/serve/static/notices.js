// A message where something went wrong, with what to do.

export function showError(id, message) {
  const box = document.getElementById(id);
  const news = message && box.textContent !== message;
  box.textContent = message;
  box.hidden = !message;
  if (news) box.scrollIntoView({ block: "nearest" });
}

export const hideError = (id) => showError(id, "");
