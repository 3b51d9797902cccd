// The button that changes between light and dark.

export function themeButton(button) {
  const name = () => {
    const text = document.documentElement.dataset.theme === "dark" ? "Light colours" : "Dark colours";
    button.setAttribute("aria-label", text);
    button.title = text;
  };
  button.addEventListener("click", () => window.toggleTheme());
  addEventListener("themechange", name);
  name();
}
