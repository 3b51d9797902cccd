// Light or dark, before anything is painted: as this reader chose here, or else as the system says.
// A classic script, because a module would come after the first paint.

(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try {
    chosen = localStorage.getItem("theme");
  } catch {
    // storage is off: the system's choice will do
  }

  function apply() {
    root.dataset.theme = chosen ?? (system.matches ? "dark" : "light");
    dispatchEvent(new Event("themechange"));
  }

  window.toggleTheme = () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("theme", chosen);
    } catch {
      // it holds until the page is closed
    }
    apply();
  };
  system.addEventListener("change", apply);
  apply();
})();
