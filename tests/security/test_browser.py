"""A page from another port of this machine, in a real browser, tries all that a page can against a
gateway without keys, which trusts this machine: nothing reaches the queue or the model server, and
nothing can be read.
"""

from __future__ import annotations

import json

import pytest

from hearth.events import RequestRejected
from tests.security.house import open_door
from tests.support.fake_webhooks import Reply, Webhooks, serving
from tests.support.patience import in_time

ADMIN = ("/llm/admin/pause", "/llm/admin/config")
PATHS = (
    "/",
    "/metrics",
    "/api/chat",
    "/api/tags",
    "/api/ps",
    "/api/pull",
    "/v1/models",
    "/llm/queue/stream",
    *ADMIN,
)
ATTACK = """
async ([target, paths]) => {
  const read = [], body = JSON.stringify({model: 'm', messages: [{role: 'user', content: 'hi'}]});
  const tries = [];
  const attempt = (name, work) => tries.push(
    Promise.race([work(), new Promise((resolve) => setTimeout(resolve, 3000))])
      .then((got) => { if (got) read.push(name + ': ' + got); }, () => {}));
  const element = (tag, fields) => new Promise((resolve) => {
    const made = Object.assign(document.createElement(tag), fields);
    made.onload = made.onerror = () => resolve('');
    document.body.append(made);
  });
  for (const path of paths) {
    const url = target + path;
    for (const mode of ['no-cors', 'cors']) {
      attempt('get ' + path, async () => (await fetch(url, {mode})).text());
      for (const type of [
        'text/plain', 'application/x-www-form-urlencoded', 'application/json', null,
      ]) {
        const blob = new Blob([body], {type: type ?? ''});
        attempt('post ' + path, async () =>
          (await fetch(url, {mode, method: 'POST', body: blob})).text());
      }
    }
    for (const method of ['DELETE', 'PUT', 'HEAD'])
      attempt(method + ' ' + path, async () =>
        (await fetch(url, {method, credentials: 'include'})).headers.get('x-request-id'));
    attempt('beacon ' + path, async () => {
      navigator.sendBeacon(url, new Blob([body], {type: 'text/plain'}));
    });
    for (const [tag, fields] of [
      ['img', {src: url}], ['script', {src: url}], ['iframe', {src: url}],
      ['object', {data: url}], ['embed', {src: url}], ['video', {src: url}], ['audio', {src: url}],
      ['link', {rel: 'stylesheet', href: url}], ['link', {rel: 'prefetch', href: url}],
      ['link', {rel: 'preload', as: 'fetch', href: url}],
      ['script', {src: url, crossOrigin: 'anonymous'}],
    ]) attempt(tag + ' ' + path, () => element(tag, fields));
    for (const [method, enctype] of [
      ['get', ''], ['post', 'text/plain'],
      ['post', 'application/x-www-form-urlencoded'], ['post', 'multipart/form-data'],
    ]) {
      attempt('form ' + path, async () => {
        const frame = document.createElement('iframe');
        frame.name = 'frame' + Math.random();
        document.body.append(frame);
        const form = document.createElement('form');
        Object.assign(form, {action: url, method, enctype, target: frame.name});
        const input = document.createElement('input');
        form.append(Object.assign(input, {name: body.slice(0, -1) + ',"x":"', value: '"}'}));
        document.body.append(form);
        form.submit();
        await new Promise((resolve) => { frame.onload = resolve; });
      });
    }
    attempt('events ' + path, () => new Promise((resolve) => {
      const source = new EventSource(url);
      source.onmessage = (event) => resolve(event.data);
      source.onerror = () => { source.close(); resolve(''); };
    }));
    attempt('socket ' + path, () => new Promise((resolve) => {
      const socket = new WebSocket(url.replace('http', 'ws'));
      Object.assign(socket, {onopen: () => resolve('open'), onerror: () => resolve('')});
    }));
    const opened = window.open(url, '_blank', 'noopener');
    attempt('open ' + path, async () => opened && opened.document.body.innerText);
  }
  await Promise.all(tries);
  return read;
}
"""


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
async def test_a_page_on_another_port_makes_the_gateway_do_nothing_and_reads_nothing(name, browser):
    async with (
        open_door(keys=()) as (house, url),
        serving(Webhooks(default=Reply(200, {"Content-Type": "text/html"}))) as elsewhere,
    ):
        page = await browser.new_page()
        await page.goto(elsewhere)
        async with in_time():
            read = await page.evaluate(ATTACK, [url.replace("127.0.0.1", name), list(PATHS)])
        await page.close()
        tried = {event.path for event in house.events.of(RequestRejected)}
        # the attack was real: it came as far as the door
        assert set(PATHS) - {"/"} <= tried, json.dumps(sorted(tried))
        assert house.reached == []
        assert not house.gateway.orders.paused
        assert read == []
