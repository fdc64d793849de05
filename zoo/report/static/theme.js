"use strict";
// Before the page is drawn, so that a chosen theme does not flash in the other one.
try {
  const chosen = localStorage.getItem("zoo-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // storage may be forbidden; then the system's theme is used
}
