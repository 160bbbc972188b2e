// The path below which a proxy serves this page, empty for none: that of its files, which lie in
// `static`.

export const BASE = new URL("..", import.meta.url).pathname.slice(0, -1);
