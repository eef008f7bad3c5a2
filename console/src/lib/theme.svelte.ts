/** Light, dark, or as the system has it; kept in this browser. */

export type Theme = "system" | "light" | "dark";
const KEY = "moldau.theme";

function stored(): Theme {
  try {
    const found = localStorage.getItem(KEY);
    return found === "light" || found === "dark" ? found : "system";
  } catch {
    return "system";
  }
}

class Look {
  theme = $state<Theme>("system");
  isDark = $state(false);
}

export const look = new Look();

const system = window.matchMedia("(prefers-color-scheme: dark)");

export function applyTheme(theme: Theme = stored()): void {
  look.theme = theme;
  look.isDark = theme === "dark" || (theme === "system" && system.matches);
  document.documentElement.dataset.theme = look.isDark ? "dark" : "light";
  try {
    if (theme === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, theme);
  } catch {
    // A browser that stores nothing: the choice lasts as long as the page.
  }
}

system.addEventListener("change", () => applyTheme(look.theme));
