// Of the open dialog, or of the page where none is: the contrast of each text and of each stroke (WCAG 2.2), and the smaller side of each
// target in px, each with what has it. `drawn`: names of colours that are only drawn on a canvas or around what has the focus.
(drawn) => {
  const pen = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true }), known = new Map();
  const read = (colour) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = pen.getImageData(0, 0, 1, 1).data;
    return known.set(colour, [red, green, blue, alpha / 255]).get(colour);
  };
  const rgba = (colour) => known.get(colour) ?? read(colour);
  const mixed = (top, below, part) => top.slice(0, 3).map((value, at) => value * part + below[at] * (1 - part));
  const over = (colour, below) => mixed(rgba(colour), below, rgba(colour)[3]);
  const ground = (element) => element ? over(getComputedStyle(element).backgroundColor, ground(element.parentElement)) : [255, 255, 255];
  const seen = (colour, element) => {
    for (let each = element; each; each = each.parentElement) {
      const { opacity, filter } = getComputedStyle(each), grey = new Array(3).fill(colour[0] * 0.2126 + colour[1] * 0.7152 + colour[2] * 0.0722);
      colour = mixed(mixed(grey, colour, Number(filter.match(/^grayscale[(](.+)[)]$/)?.[1] ?? 0)), ground(each.parentElement), Number(opacity));
    }
    return colour;
  };
  const light = (colour) => colour.map((value) => value / 255).map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const contrast = (one, other) => {
    const [more, less] = [light(one), light(other)].sort((a, b) => b - a);
    return (more + 0.05) / (less + 0.05);
  };
  const against = (colour, element, below) => contrast(seen(over(colour, below), element), seen(below, element));
  const value = (token) => getComputedStyle(document.documentElement).getPropertyValue(token).trim();
  const root = [...document.querySelectorAll("dialog[open]")].pop() ?? document.body;
  const shown = (selector) => [...root.querySelectorAll(selector)].filter((each) => each.checkVisibility({ visibilityProperty: true }) && !each.disabled
    && !each.closest(".hidden, .skip, option, noscript, script") && getComputedStyle(each.closest("thead") ?? each).clipPath === "none");
  const name = (each) => `${each.tagName.toLowerCase()}.${each.className} ${(each.ariaLabel || each.textContent).trim().slice(0, 30)}`;
  const texts = [], strokes = [], targets = [];
  for (const token of drawn) strokes.push([token, Math.min(...["--ground", "--panel"].map((below) => contrast(over(value(token), [0, 0, 0]), over(value(below), [0, 0, 0]))))]);
  const add = (list, each, value) => list.push([name(each), Math.round(value * 100) / 100]);
  for (const each of shown("*")) {
    const style = getComputedStyle(each), below = ground(each);
    if ([...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) add(texts, each, against(style.color, each, below));
    if (each.placeholder) add(texts, each, against(getComputedStyle(each, "::placeholder").color, each, below));
  }
  const edges = (style) => parseFloat(style.borderTopWidth) && style.borderTopStyle !== "none" ? rgba(style.borderTopColor)[3] : 0;
  for (const each of shown("button, input:not([type=checkbox]), select, textarea, kbd, .order")) {
    const style = getComputedStyle(each), below = ground(each.parentElement);
    if (edges(style)) add(strokes, each, Math.max(against(style.borderTopColor, each, below), against(style.backgroundColor, each, below)));
  }
  for (const each of shown("i, .dot, .model")) {
    const style = getComputedStyle(each, each.matches(".model") ? "::before" : null), below = ground(each.matches(".model") ? each : each.parentElement);
    const painted = style.backgroundImage === "none" && rgba(style.backgroundColor)[3] > 0;
    if (painted) add(strokes, each, Math.max(against(style.backgroundColor, each, below), edges(style) && against(style.borderTopColor, each, below)));
  }
  for (const each of shown("button, summary, input, select, textarea, a[href]")) {
    const boxes = [each, each.closest("label")].filter(Boolean).map((one) => one.getBoundingClientRect());
    add(targets, each, Math.min(Math.max(...boxes.map((box) => box.width)), Math.max(...boxes.map((box) => box.height))));
  }
  return { ground: value("--ground"), text: texts, stroke: strokes, target: targets };
}
