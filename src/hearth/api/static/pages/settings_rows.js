// The configuration in force as rows: a value each, with where it comes from.

// Rows of `{path, name, text, origin}`; `origin` is null for the default.
export function rowsOf({ settings, origins, command_line: commandLine }) {
  const known = new Map(origins.map((origin) => [keyOf(origin.path), origin]));
  return Object.entries(settings)
    .filter(([section]) => section !== "modes") // They have a panel of their own.
    .flatMap(([section, value]) => [...leavesOf([section], value)])
    .map(({ path, value }) => {
      const name = path.join(".");
      const said = commandLine[name] ?? value;
      return { path, name, text: textOf(said), origin: known.get(keyOf(path)) ?? null };
    });
}

const keyOf = (path) => JSON.stringify(path);

function* leavesOf(path, value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) {
    yield { path, value };
    return;
  }
  for (const [name, each] of Object.entries(value)) yield* leavesOf([...path, name], each);
}

function textOf(value) {
  if (value === null) return "unset";
  if (Array.isArray(value)) {
    const between = value.some((item) => item !== null && typeof item === "object") ? "\n" : ", ";
    return value.length ? value.map(itemText).join(between) : "none";
  }
  if (typeof value === "object") return itemText(value) || "none";
  return value === "" ? "empty" : String(value);
}

// Of an entry of a list or table, what is said of it: `n8n: lane external, models llama3*`.
export function itemText(item) {
  if (item === null || typeof item !== "object") return String(item);
  const { name, ...rest } = item;
  const said = Object.entries(rest)
    .filter(([, each]) => ![null, false, ""].includes(each) && each.length !== 0)
    .map(([key, each]) => (each === true ? key : `${key} ${textOf(each)}`));
  return [name, said.join(", ")].filter(Boolean).join(": ");
}

export function originOf({ origin }, mode) {
  if (!origin) return "default";
  const line = origin.line == null ? "" : `line ${origin.line}`;
  const from = {
    file: "",
    environment: "from the environment",
    mode: `mode ${mode}`,
    "command line": "command line",
  }[origin.from];
  return [from, line].filter(Boolean).join(", ") || "file";
}
