// Light or dark: as the system has it, unless the switch says otherwise.

const KEY = "spgru-theme";

export function startTheme() {
  const choice = document.getElementById("theme");
  choice.value = stored();
  apply(choice.value);
  choice.addEventListener("change", () => {
    apply(choice.value);
    try { localStorage.setItem(KEY, choice.value); } catch { /* private window: not kept */ }
  });
}

function stored() {
  try {
    const found = localStorage.getItem(KEY);
    return ["light", "dark"].includes(found) ? found : "auto";
  } catch {
    return "auto";
  }
}

function apply(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}
