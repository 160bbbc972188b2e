// Before anything is drawn, so that a page in the chosen theme never flashes in the other one.
(() => {
  try {
    const chosen = localStorage.getItem("hearth.theme");
    if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  } catch {
    // Storage is off: the system's theme holds.
  }
})();
