// One colour per model, the same everywhere on the page. Names are sorted so that a reload gives
// the same colours.

const SHADES = 8;
const known = new Map();

export function learnModels(names) {
  const missing = names.filter((name) => !known.has(name)).sort();
  for (const name of missing) known.set(name, known.size % SHADES);
}

// The number of the model's shade; `--shade-N` in the style sheet.
export function shadeOf(model) {
  if (!known.has(model)) learnModels([model]);
  return known.get(model);
}

export function shadeClass(model) {
  return model == null ? "shade-none" : `shade-${shadeOf(model)}`;
}

// A colour as the present theme has it, for what is drawn on a canvas.
export function themeColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
