// Tabs as the ARIA practices have them: arrow keys move between tabs, Tab goes into the panel.

export function startTabs(onShow) {
  const tabs = [...document.querySelectorAll('[role="tab"]')];

  function show(tab, focus) {
    for (const other of tabs) {
      const chosen = other === tab;
      other.setAttribute("aria-selected", String(chosen));
      other.tabIndex = chosen ? 0 : -1;
      document.getElementById(other.getAttribute("aria-controls")).hidden = !chosen;
    }
    if (focus) tab.focus();
    history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`);
    onShow(tab.getAttribute("aria-controls"));
  }

  tabs.forEach((tab, k) => {
    tab.addEventListener("click", () => show(tab, false));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) show(tabs[(k + step + tabs.length) % tabs.length], true);
    });
  });
  const wanted = tabs.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash);
  if (wanted) show(wanted, false);
}
