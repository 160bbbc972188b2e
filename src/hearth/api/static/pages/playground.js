// A conversation with a model, sent like any program sends it: where its request stands in the
// queue, a swap, the answer as it comes, an interruption, and the speed.

import { html, Component } from "../vendor/htm-preact-3.1.1.module.js";
import { Loaded } from "../fetching.js";
import { short } from "../format.js";
import { Icon } from "../icons.js";
import { MOST_PICTURES, picturesIn, pictureOf } from "../pictures.js";
import { Link } from "../router.js";
import { talkOf } from "../talk.js";
import { Settings } from "./playground_settings.js";
import { Turn } from "./playground_turn.js";

const NEAR_END_PX = 160; // Whoever has scrolled up reads, and is not moved.
const signOf = ({ models, residents }) => [Object.keys(models), Object.keys(residents)].join();

export class Playground extends Component {
  constructor(props) {
    super(props);
    this.state = { images: [], said: "" };
    this.loaded = new Loaded(props.feed, () => this.setState({}));
    this.asked = null;
    this.made = {};
  }

  get talk() {
    const talk = talkOf(this.props.feed, this.props.state.you.caller);
    talk.changed = () => this.setState({});
    return talk;
  }

  componentDidMount() {
    this.componentDidUpdate();
    this.fit = () => fitKeyboard();
    visualViewport?.addEventListener("resize", this.fit);
    visualViewport?.addEventListener("scroll", this.fit);
  }

  componentWillUnmount() {
    this.talk.changed = () => {};
    this.loaded.close();
    visualViewport?.removeEventListener("resize", this.fit);
    visualViewport?.removeEventListener("scroll", this.fit);
  }

  componentDidUpdate() {
    const sign = signOf(this.props.state);
    if (sign !== this.asked) this.loaded.ask("/llm/models");
    this.asked = sign;
    if (this.input && !this.begun) this.begin();
    this.follow();
  }

  begin() {
    this.begun = true;
    this.sent = this.talk.kept.turns.length > 0; // A conversation is entered at its end.
    this.input.focus({ preventScroll: true });
  }

  // Keeps the end of an answer in sight while it grows.
  follow() {
    const page = document.documentElement;
    const length = this.talk.kept.turns.reduce((sum, turn) => sum + turn.text.length + 1, 0);
    const grew = length > (this.length ?? length);
    this.length = length;
    const left = page.scrollHeight - page.clientHeight - page.scrollTop;
    if (this.sent || (grew && left < NEAR_END_PX)) scrollTo(0, page.scrollHeight);
    this.sent = false;
  }

  send = (event) => {
    event?.preventDefault();
    const text = this.talk.kept.draft.trim();
    const { images } = this.state;
    if (this.talk.pending || this.reading || !(text || images.length)) return;
    const model = this.chosen();
    if (!model) return;
    this.sent = true;
    this.setState({ images: [], said: "" });
    this.talk.set({ model: model.name });
    this.talk.send(text, images);
  };

  add = async (files) => {
    const free = MOST_PICTURES - this.state.images.length;
    const problem = files.length > free ? `No more than ${MOST_PICTURES} images at once. ` : "";
    this.reading = true;
    const read = await Promise.allSettled(files.slice(0, free).map(pictureOf));
    this.reading = false;
    const images = read.filter(({ value }) => value).map(({ value }) => value);
    const unread = images.length < read.length ? "An image could not be read." : "";
    this.setState({ images: [...this.state.images, ...images], said: problem + unread });
    this.input?.focus();
  };

  edit = () => {
    const asked = this.talk.takeBack();
    this.setState({ images: asked.images ?? [] });
    this.input.focus();
  };

  clear = () => {
    const run = () => {
      this.talk.clear();
      this.setState({ images: [], said: "" });
      this.input?.focus();
    };
    this.props.ask({
      title: "Clear the conversation?",
      text: "It is nowhere but in this tab.",
      label: "Clear",
      run,
    });
  };

  // Made once for each answer: of thousands of models, not with every key that is pressed.
  choices() {
    const { answer } = this.loaded;
    const from = answer ?? this.asked;
    if (this.made.from !== from) this.made = { from, list: choicesOf(this.props.state, answer) };
    return this.made.list;
  }

  // The model that the address names, else that of the conversation, else what is in memory.
  chosen() {
    const { query, state } = this.props;
    const choices = this.choices();
    const { loaded_model: loaded, home_model: home } = state.gpu;
    const wanted = [query.get("model"), this.talk.kept.model, loaded, home];
    const found = wanted.map((name) => choices.find((each) => each.name === name)).find(Boolean);
    return found ?? choices[0];
  }

  choose = (name) => {
    this.talk.set({ model: name });
    this.props.go("playground", { model: name }, { replace: true });
  };

  // Nothing is shown before it is known what the model can do: else it would move.
  render(props) {
    const { answer, problem } = this.loaded;
    if (!answer && !problem) return html`<p class="empty talking">One moment.</p>`;
    const { talk } = this;
    const { turns } = talk.kept;
    const model = this.chosen();
    const shared = { state: props.state, now: props.now };
    return html`<div class="talk">
      <section class="panel talking" aria-labelledby="talk-title">
        <header><h1 id="talk-title">Playground</h1>
          <span class="note">Stored nowhere but in this tab; prompts are not logged.</span>
          <span class="tools"><button class="small" disabled=${!turns.length}
            onClick=${this.clear}><${Icon} name="delete-outline" /> Clear</button></span></header>
        ${turns.length
          ? html`<ol class="turns">${turns.map((turn, at) => html`<${Turn} key=${at}
              turn=${turn} pending=${turn === talk.pending} last=${lastOf(turns, at)}
              edit=${this.edit} again=${() => talk.again()} ...${shared} />`)}</ol>`
          : html`<${Beginning} model=${model} />`}
        <${Composer} page=${this} talk=${talk} model=${model} />
      </section>
      <${Settings} talk=${talk} model=${model} choices=${this.choices()}
        choose=${this.choose} />
    </div>`;
  }
}

// The last question can be written anew, and the last answer had once more.
function lastOf(turns, at) {
  return turns.slice(at + 1).every((turn) => turn.role !== turns[at].role);
}

function Beginning({ model }) {
  return html`<div class="beginning"><${Icon} name="chat-outline" />
    ${model
      ? html`<p>Ask ${short(model.name)} something. You will see its place in the queue, what it
          waits for, and how fast it answers.</p>`
      : html`<p>There is no model that could answer. <${Link} to="models">Pull one<//></p>`}
  </div>`;
}

function Composer({ page, talk, model }) {
  const { images, said } = page.state;
  const canSend = model && (talk.kept.draft.trim() || images.length);
  const drop = (event) => {
    event.preventDefault();
    if (sees(model)) page.add(picturesIn(event.dataTransfer));
  };
  const remove = (at) => page.setState({ images: images.toSpliced(at, 1) });
  return html`<form class="composer" onSubmit=${page.send} onDrop=${drop}
    onDragOver=${(event) => event.preventDefault()}>
    ${images.length ? html`<${Pictures} images=${images} remove=${remove} />` : null}
    ${said ? html`<p class="wrong" role="alert">${said}</p>` : null}
    <${Input} page=${page} talk=${talk} model=${model} />
    <div class="composer-line">
      ${sees(model) ? html`<${Attach} add=${page.add} />` : null}
      <span class="muted small grow" id="prompt-help">Enter sends, Shift+Enter begins a new
        line${sees(model) ? "; images can be pasted or dropped" : ""}.</span>
      ${talk.pending
        ? html`<button type="button" class="danger" onClick=${() => talk.stop()}>
            <${Icon} name="stop" /> Stop</button>`
        : html`<button type="submit" class="primary" disabled=${!canSend}>
            <${Icon} name="send" /> Send</button>`}
    </div>
  </form>`;
}

function Input({ page, talk, model }) {
  const { draft } = talk.kept;
  return html`<label class="hidden" for="prompt">Message</label>
    <textarea id="prompt" rows=${rowsOf(draft)} value=${draft} enterkeyhint="send"
      placeholder=${model ? `Message to ${short(model.name)}` : "Message"}
      aria-describedby="prompt-help" ref=${(node) => (page.input = node)}
      onInput=${(event) => talk.set({ draft: event.target.value })}
      onKeyDown=${(event) => pressed(event, page)}
      onPaste=${(event) => pasted(event, page, model)}></textarea>`;
}

function Pictures({ images, remove }) {
  return html`<ul class="pictures" aria-label="Images to send">
    ${images.map((image, at) => html`<li key=${at}><img src=${image} alt=${`Image ${at + 1}`} />
      <button type="button" class="icon" aria-label=${`Remove image ${at + 1}`}
        onClick=${() => remove(at)}><${Icon} name="close" /></button></li>`)}
  </ul>`;
}

function Attach({ add }) {
  const chosen = (event) => {
    add(picturesIn(event.target));
    event.target.value = "";
  };
  return html`<label class="attach" title="Add images">
    <${Icon} name="image-outline" /><span>Images</span>
    <input type="file" accept="image/*" multiple onChange=${chosen} /></label>`;
}

function pressed(event, page) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  page.send();
}

function pasted(event, page, model) {
  const files = picturesIn(event.clipboardData);
  if (!files.length || !sees(model)) return;
  event.preventDefault();
  page.add(files);
}

// Nothing is known of what some models can do: then they may be asked.
export function sees(model) {
  return Boolean(model) && (model.accepts?.includes("vision") ?? true);
}

function rowsOf(text) {
  return Math.min(10, Math.max(2, text.split("\n").length));
}

// What can be talked to: models that do not only embed, and aliases of those.
function choicesOf(state, answer) {
  const known = answer?.models ?? Object.values(state.models);
  const models = known.filter((model) => model.installed && talks(model));
  const names = [...new Set(models.flatMap((model) => model.aliases ?? []))];
  const aliases = names.map((name) => {
    const of = models.filter((model) => model.aliases.includes(name));
    return { name, alias: of.map((each) => short(each.name)), accepts: union(of) };
  });
  return [...aliases, ...models];
}

function talks(model) {
  return model.accepts?.includes("completion") ?? !model.name.includes("embed");
}

function union(models) {
  if (models.some((model) => !model.accepts)) return null;
  return [...new Set(models.flatMap((model) => model.accepts))];
}

// On a phone the keyboard covers the page, and the input stays above it.
function fitKeyboard() {
  const { height, offsetTop } = visualViewport;
  const covered = Math.max(0, Math.round(innerHeight - height - offsetTop));
  document.documentElement.style.setProperty("--keyboard", `${covered}px`);
}
