// The panels that cover the chat on a narrow screen.

const panels = ["tree", "cache"].map((name) => ({
  button: document.getElementById(`toggle-${name}`),
  panel: document.getElementById(`${name}-panel`),
}));

function set({ button, panel }, on) {
  panel.classList.toggle("open", on);
  button.setAttribute("aria-expanded", on);
}

export function closePanels() {
  panels.forEach((one) => set(one, false));
}

panels.forEach((one) => {
  one.button.addEventListener("click", () => {
    const on = !one.panel.classList.contains("open");
    closePanels();
    set(one, on);
  });
});
