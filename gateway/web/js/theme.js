/** Light and dark: the system decides until the reader does. */

const STORAGE_KEY = "sluice.theme";
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");

function current() {
  return document.documentElement.dataset.theme ?? (systemIsDark.matches ? "dark" : "light");
}

/** @param {HTMLButtonElement} button switches between the two and says what it would switch to */
export function installTheme(button) {
  const label = () => {
    const text = current() === "dark" ? "Switch to the light theme" : "Switch to the dark theme";
    button.setAttribute("aria-label", text);
    button.title = text;
  };
  button.addEventListener("click", () => {
    const theme = current() === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem(STORAGE_KEY, theme);
    } catch {
      // Storage is blocked: the choice lasts as long as the page.
    }
    label();
  });
  systemIsDark.addEventListener("change", label);
  label();
}
