// The sign-in. It says what a key is, and never an error of the API.

import { html, Component } from "./vendor/htm-preact-3.1.1.module.js";

export class Lock extends Component {
  componentDidMount() {
    this.input.focus();
  }

  open = (event) => {
    event.preventDefault();
    const key = this.input.value.trim();
    if (key) this.props.feed.useKey(key, this.remember.checked);
  };

  render({ feed }) {
    const wrong = problemOf(feed.link);
    return html`<form class="centre lock" onSubmit=${this.open}>
      <h1>Sign in</h1>
      <p class="muted">A key says who is asking, as a password does. The owner of this Hearth makes
        one with <code>hearth key new NAME</code>, or on the page Keys. An admin key shows
        every request and may use the admin commands.</p>
      <label for="key">Key</label>
      <input id="key" type="password" autocomplete="off" spellcheck="false" required
        aria-describedby=${wrong ? "wrong" : undefined} ref=${(node) => (this.input = node)} />
      ${wrong ? html`<p class="wrong" id="wrong" role="alert">${wrong}</p>` : null}
      <label class="check"><input type="checkbox" ref=${(node) => (this.remember = node)} />
        <span>Stay signed in on this device</span></label>
      <button type="submit" class="primary">Sign in</button>
      <p class="muted small">The key is sent to Hearth only, and kept in this tab, or on this
        device. For a wall display, use a key without admin rights.</p>
    </form>`;
  }
}

function problemOf({ code, retry }) {
  if (code === 429) {
    const wait = retry ? ` Try again in ${retry} s.` : " Try again in a minute.";
    return `There were too many attempts with a wrong key from this device.${wait}`;
  }
  if (code === 400) return "This is not a key: it has characters that no key has.";
  return code ? "Hearth does not know this key. It may have been mistyped, or revoked." : "";
}
