// Starts the page.

import { getJson } from "./api.js";
import { setColours } from "./frames.js";
import { startForecast } from "./forecast.js";
import { startMoving } from "./moving.js";
import { showError } from "./notices.js";
import { startTabs } from "./tabs.js";
import { startTheme } from "./theme.js";

startTheme();
startTabs(() => {});
try {
  const about = await getJson("/api/about");
  document.getElementById("version").textContent = `Version ${about.version}.`;
  setColours(about.colours);
  startForecast(about.limits);
  startMoving(about);
} catch (error) {
  showError("start-error", error.message);
}
