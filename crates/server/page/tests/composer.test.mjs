// Writing and receiving: files, a field that grows, the context, answers that go on, reasoning and tool calls.

import assert from "node:assert/strict";
import { test } from "node:test";
import { api, begin, conversation, onPage, send, settled, shot } from "./browser.mjs";

const file = (name, text, mimeType = "text/plain") => ({ name, mimeType, buffer: Buffer.from(text) });

test("text files go with a message and are folded in it", () =>
  onPage(async (page) => {
    await page.locator("#files").setInputFiles([file("notes.md", "# Notes\n```\ncode\n```\n"), file("b.txt", "two")]);
    await page.locator("#attachments li").nth(1).waitFor();
    await page.getByRole("button", { name: "Leave out b.txt" }).click();
    const id = await send(page, "What is in it?", 2);
    assert.equal(await page.locator("#attachments li").count(), 0);
    const { content } = (await conversation(id)).turns[0];
    assert.equal(content, "What is in it?\n\nFile notes.md:\n````\n# Notes\n```\ncode\n```\n````");
    const box = page.locator(".turn.user details.file");
    assert.equal(await box.locator("summary").innerText(), "notes.md");
    assert.equal(await box.locator("pre").isVisible(), false);
    await box.locator("summary").click();
    assert.equal(await box.locator("pre").innerText(), "# Notes\n```\ncode\n```");
    await shot(page, "attachment");
  }));

test("what is no text is refused by name", () =>
  onPage(async (page) => {
    await page.locator("#files").setInputFiles([file("photo.png", "x", "image/png")]);
    await page.getByText("photo.png: the models take no pictures, only text.").waitFor();
    await page.locator("#files").setInputFiles([{ name: "a.bin", mimeType: "application/octet-stream", buffer: Buffer.from([255, 0, 254]) }]);
    await page.getByText("a.bin is not a text file.").waitFor();
    assert.equal(await page.locator("#attachments li").count(), 0);
  }));

test("a dropped file is taken", () =>
  onPage(async (page) => {
    await page.evaluate(() => {
      const data = new DataTransfer();
      data.items.add(new File(["dropped"], "d.txt", { type: "text/plain" }));
      document.getElementById("chat").dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
    });
    await page.getByText(/^d\.txt \(7 characters\)/).waitFor();
  }));

test("the field grows with its text, up to a part of the screen", () =>
  onPage(async (page) => {
    const height = () => page.locator("#input").evaluate((field) => field.offsetHeight);
    const before = await height();
    await page.locator("#input").fill("line\n".repeat(6));
    const grown = await height();
    assert.ok(grown > before * 2, `${before} to ${grown}`);
    await page.locator("#input").fill("line\n".repeat(200));
    assert.ok((await height()) < 800 / 2);
    await page.locator("#input").fill("");
    assert.equal(await height(), before);
  }));

test("the page says how full the context is", () =>
  onPage(async (page) => {
    assert.equal(await page.locator("#fill").isVisible(), false);
    const id = await send(page, "Name a river.", 2);
    const { tokens } = await conversation(id);
    const { default_generation_settings: settings } = await api("GET", "/props");
    assert.equal(await page.locator("#fill-text").innerText(), `${tokens} of ${settings.n_ctx} tokens of the context`);
    assert.equal(await page.locator("#fill-meter").evaluate((meter) => meter.value / meter.max), tokens / settings.n_ctx);
    await page.locator("#new").click();
    await page.locator("#fill").waitFor({ state: "hidden" });
  }));

test("an answer that was cut goes on in its place", () =>
  onPage(
    async (page) => {
      const id = await send(page, "Write a very long story about a mountain.", 2);
      const before = (await conversation(id)).turns[1];
      assert.equal(before.partial, true);
      await page.locator(".turn.assistant").hover();
      await page.getByRole("button", { name: "continue" }).click();
      await page.waitForFunction((n) => document.querySelector(".turn.assistant .body").innerText.length > n, before.content.length);
      await settled(page, 2);
      const after = (await conversation(id)).turns;
      assert.equal(after.length, 2);
      assert.ok(after[1].content.startsWith(before.content) && after[1].content.length > before.content.length);
      assert.equal(after[1].tokens, before.tokens * 2);
    },
    { settings: { seed: "1" } },
  ));

test("a fork that was made in the middle of an answer goes on too", async () => {
  const id = await begin([]);
  const messages = [{ role: "user", content: "Write a very long story about a lake." }];
  await api("POST", "/v1/chat/completions", { conversation: id, messages, max_tokens: 12, temperature: 0 });
  const fork = await api("POST", `/v1/kvark/conversations/${id}/fork`);
  await onPage(
    async (page) => {
      await settled(page, 2);
      await page.locator(".turn.assistant").hover();
      await page.getByRole("button", { name: "continue" }).click();
      await page.getByText(/tokens, [\d.]+ per second/).waitFor();
      await settled(page, 2);
      assert.ok((await conversation(fork.id)).turns[1].content.length > (await conversation(id)).turns[1].content.length);
    },
    { hash: fork.id },
  );
});

test("reasoning is folded before its answer", async () => {
  const id = await begin([
    { role: "user", content: "Is it so?" },
    { role: "assistant", content: "Yes.", reasoning_content: "It might be." },
  ]);
  await onPage(
    async (page) => {
      await settled(page, 2);
      assert.equal(await page.locator(".turn.assistant .body").innerText(), "Yes.");
      assert.equal(await page.locator(".thought").isVisible(), false);
      await page.getByText("Reasoning", { exact: true }).click();
      assert.equal(await page.locator(".thought").innerText(), "It might be.");
    },
    { hash: id },
  );
});

test("tool calls are shown with their arguments", async () => {
  const call = { id: "c1", type: "function", function: { name: "weather", arguments: '{"city": "Paris"}' } };
  const id = await begin([
    { role: "user", content: "Weather?" },
    { role: "assistant", content: "", tool_calls: [call] },
    { role: "tool", content: "sunny", tool_call_id: "c1" },
  ]);
  await onPage(
    async (page) => {
      await settled(page, 3);
      assert.equal(await page.locator(".call summary").innerText(), "Calls weather");
      assert.deepEqual(JSON.parse(await page.locator(".call code").innerText()), { city: "Paris" });
      assert.equal(await page.locator(".turn.tool .body").innerText(), "sunny");
      await shot(page, "tool-call");
    },
    { hash: id },
  );
});

test("reasoning and calls are shown as they come", () =>
  onPage(async (page) => {
    const chunk = (delta, finish_reason = null) => `data: ${JSON.stringify({ choices: [{ index: 0, delta, finish_reason }] })}\n\n`;
    const part = (name, written) => ({ tool_calls: [{ index: 0, id: "c1", function: { name, arguments: written } }] });
    await page.route("**/v1/chat/completions", (route) =>
      route.fulfill({
        contentType: "text/event-stream",
        body: [chunk({ reasoning_content: "Let me " }), chunk({ reasoning_content: "see." }), chunk({ content: "Looking." }), chunk(part("look", '{"a"')), chunk(part(undefined, ": 1}")), chunk({}, "tool_calls"), "data: [DONE]\n\n"].join(""),
      }),
    );
    await page.locator("#input").fill("Look.");
    await page.locator("#input").press("Enter");
    await page.locator(".call code").waitFor();
    await page.locator("#send:not([hidden])").waitFor();
    assert.equal(await page.locator(".thought").evaluate((box) => box.textContent), "Let me see.");
    assert.equal(await page.locator(".reasoning").evaluate((box) => box.open), false);
    assert.equal(await page.locator(".call summary").innerText(), "Calls look");
    assert.equal(await page.locator(".call code").innerText(), '{"a": 1}');
    assert.equal(await page.locator(".turn.assistant .body").innerText(), "Looking.");
  }));
