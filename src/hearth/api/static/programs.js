// What to set in each kind of program, so that it asks this gateway; docs/clients says why.

// A word as a shell reads it.
function word(text) {
  return /^[\w.:/@%+=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

// A string of JSON is one of YAML, TOML and Python, too.
const text = JSON.stringify;

const keyInShell = (key) => ({
  where: "In the shell that starts it",
  lines: `export HEARTH_KEY=${word(key)}`,
});

function openWebui({ address, key }) {
  const fields = [["URL", `${address}/v1`], ["Key", key]];
  return [{ where: "Settings, Connections, OpenAI API: add a connection", fields }];
}

function homeAssistant({ address, key }) {
  const fields = [["URL", address], ["API key", key]];
  return [{ where: "Settings, Devices & services, Add integration, Ollama", fields }];
}

function n8n({ address, key }) {
  const fields = [["Base URL", address], ["API key", key]];
  return [{ where: "Credentials, Ollama. Leave Streaming of the chat model on", fields }];
}

function claudeCode({ address, key, model }) {
  const lines = [
    `export ANTHROPIC_BASE_URL=${word(address)}`,
    `export ANTHROPIC_AUTH_TOKEN=${word(key)}`,
    `export ANTHROPIC_MODEL=${word(model)}`,
    `export ANTHROPIC_DEFAULT_HAIKU_MODEL=${word(model)}`,
  ];
  return [{ where: "In the shell that starts it", lines: lines.join("\n") }];
}

function codex({ address, key, model, keyed }) {
  const lines = [
    `model = ${text(model)}`,
    'model_provider = "hearth"',
    "",
    "[model_providers.hearth]",
    'name = "Hearth"',
    `base_url = ${text(`${address}/v1`)}`,
    'wire_api = "responses"',
    ...(keyed ? ['env_key = "HEARTH_KEY"'] : []),
  ];
  const file = { where: "~/.codex/config.toml", lines: lines.join("\n") };
  return keyed ? [file, keyInShell(key)] : [file];
}

function openCode({ address, key, model, keyed }) {
  const options = { baseURL: `${address}/v1`, timeout: 3_600_000 };
  if (keyed) options.apiKey = "{env:HEARTH_KEY}";
  const hearth = {
    npm: "@ai-sdk/openai-compatible",
    name: "Hearth",
    options,
    models: { [model]: { name: model } },
  };
  const lines = JSON.stringify({ provider: { hearth } }, null, 2);
  const file = { where: "opencode.json", lines };
  return keyed ? [file, keyInShell(key)] : [file];
}

function continueDev({ address, key, model }) {
  const lines = [
    "name: Home",
    "version: 1.0.0",
    "schema: v1",
    "models:",
    "  - name: chat",
    "    provider: ollama",
    `    model: ${text(model)}`,
    `    apiBase: ${text(address)}`,
    `    apiKey: ${text(key)}`,
    "    roles: [chat, edit, apply, autocomplete]",
  ];
  return [{ where: "~/.continue/config.yaml", lines: lines.join("\n") }];
}

function libreChat({ address, key, model }) {
  const lines = [
    "version: 1.2.8",
    "endpoints:",
    "  custom:",
    "    - name: Hearth",
    '      apiKey: "${HEARTH_KEY}"',
    `      baseURL: ${text(`${address}/v1`)}`,
    "      models:",
    `        default: [${text(model)}]`,
    "        fetch: true",
    "      titleConvo: true",
    "      titleModel: current_model",
    "      modelDisplayLabel: Hearth",
  ];
  return [
    { where: "librechat.yaml", lines: lines.join("\n") },
    { where: ".env", lines: `HEARTH_KEY=${key}` },
  ];
}

function python({ address, key, model }) {
  const lines = [
    "from openai import OpenAI  # pip install openai",
    "",
    `client = OpenAI(base_url=${text(`${address}/v1`)}, api_key=${text(key)})`,
    "answer = client.chat.completions.create(",
    `    model=${text(model)},`,
    '    messages=[{"role": "user", "content": "Hello"}],',
    ")",
    "print(answer.choices[0].message.content)",
  ];
  return [{ where: "A file of yours", lines: lines.join("\n") }];
}

function curl({ address, key, model, keyed }) {
  const body = JSON.stringify({ model, messages: [{ role: "user", content: "Hello" }] });
  const parts = [
    `curl ${word(`${address}/v1/chat/completions`)}`,
    ...(keyed ? [`-H ${word(`Authorization: Bearer ${key}`)}`] : []),
    "-H 'Content-Type: application/json'",
    `-d ${word(body)}`,
  ];
  return [{ where: "In a shell", lines: parts.join(" \\\n  ") }];
}

function other({ address, key }) {
  const fields = [
    ["Ollama", address],
    ["OpenAI", `${address}/v1`],
    ["Anthropic", address],
    ["Key", key],
  ];
  return [{ where: "Where it asks for the address of", fields }];
}

// `named`: its settings name a model; `coding`: one that writes programs suits it.
export const PROGRAMS = [
  { name: "open-webui", title: "Open WebUI", blocks: openWebui },
  { name: "home-assistant", title: "Home Assistant", blocks: homeAssistant },
  { name: "n8n", title: "n8n", blocks: n8n },
  { name: "claude-code", title: "Claude Code", blocks: claudeCode, named: true, coding: true },
  { name: "codex", title: "Codex", blocks: codex, named: true, coding: true },
  { name: "opencode", title: "OpenCode", blocks: openCode, named: true, coding: true },
  { name: "continue", title: "Continue", blocks: continueDev, named: true, coding: true },
  { name: "librechat", title: "LibreChat", blocks: libreChat, named: true },
  { name: "python", title: "Python", blocks: python, named: true },
  { name: "curl", title: "curl", blocks: curl, named: true },
  { name: "other", title: "Any other program", blocks: other },
];

// The model that is suggested: for coding one that is called so, else the home model or the first.
export function suggested(models, coding) {
  const installed = Object.values(models).filter((model) => model.installed);
  const chats = installed.filter((model) => !/embed/i.test(model.name));
  const coder = coding ? chats.find((model) => /cod(e|er)\b|devstral/i.test(model.name)) : null;
  const found = coder ?? chats.find((model) => model.home) ?? chats[0];
  return found?.name ?? "";
}
