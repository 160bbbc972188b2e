// Every page of the dashboard, in the order of the navigation. `key` opens it from the keyboard.

import { History } from "./pages/history.js";
import { Keys } from "./pages/keys.js";
import { Models } from "./pages/models.js";
import { Now } from "./pages/now.js";
import { Playground } from "./pages/playground.js";
import { Requests } from "./pages/requests.js";
import { Settings } from "./pages/settings.js";
import { Wall } from "./pages/wall.js";

export const PAGES = [
  { name: "now", title: "Now", icon: "pulse", page: Now, key: "n" },
  { name: "requests", title: "Requests", icon: "format-list-bulleted", page: Requests, key: "r" },
  { name: "history", title: "History", icon: "chart-line", page: History, key: "h" },
  { name: "models", title: "Models", icon: "cube-outline", page: Models, key: "m" },
  { name: "keys", title: "Keys", icon: "key-variant", page: Keys, key: "k" },
  { name: "playground", title: "Playground", icon: "chat-outline", page: Playground, key: "p" },
  { name: "settings", title: "Settings", icon: "cog-outline", page: Settings, key: "s" },
  { name: "wall", title: "Wall", icon: "monitor", page: Wall, wall: true },
];

export function pageOf(name) {
  return PAGES.find((page) => page.name === name);
}
