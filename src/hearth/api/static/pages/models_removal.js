// The question before a model is deleted, which names all that uses it.

import { gib, short } from "../format.js";

export function removal(model, orders) {
  const name = short(model.name);
  const inTheWay = obstacle(model);
  if (inTheWay) {
    return {
      title: `${name} cannot be deleted now`,
      text: inTheWay,
      label: "OK",
      run: () => {},
    };
  }
  const path = `/api/delete?engine=${encodeURIComponent(model.engine)}`;
  const done = () => `${name} is deleted.`;
  return {
    title: `Delete ${name}?`,
    text: usesOf(model).join(" "),
    label: "Delete",
    bad: true,
    run: () => orders.run(path, { model: model.name }, done, "DELETE"),
  };
}

function obstacle(model) {
  const { running, waiting } = model;
  if (running) return `${requests(running, "runs", "run")} on it. Cancel that first, or wait.`;
  if (waiting) return `${requests(waiting, "waits", "wait")} for it. Cancel that first, or wait.`;
  return model.pinned ? "It is pinned. Unpin it first." : "";
}

function requests(number, one, many) {
  return number === 1 ? `1 request ${one}` : `${number} requests ${many}`;
}

function usesOf(model) {
  const aliases = model.aliases.map((alias) => `"${alias}"`).join(", ");
  const several = model.aliases.length > 1;
  const named = several ? `The aliases ${aliases} name it.` : `The alias ${aliases} names it.`;
  return [
    model.home ? "It is the home model, which Hearth comes back to." : "",
    aliases ? named : "",
    model.num_ctx ? "The configuration has settings for it." : "",
    model.resident ? "It is loaded, and will be unloaded first." : "",
    model.warm_conversations ? "Its warm conversations are lost." : "",
    model.file_mib ? `${gib(model.file_mib)} of the disk get free.` : "",
    "It can be pulled again.",
  ].filter(Boolean);
}
