// The chat: sending, stopping, settings, errors, keyboard, narrow screens, colours.

import assert from "node:assert/strict";
import { stat } from "node:fs/promises";
import { test } from "node:test";
import { api, begin, branch, conversation, onPage, send, settled, shot, texts } from "./browser.mjs";

const LONG = { max_tokens: "600", seed: "1" };

test("a message is sent, and the answer is streamed and kept over a reload", () =>
  onPage(async (page) => {
    await page.evaluate(() => {
      window.lengths = new Set();
      const list = document.getElementById("turns");
      new MutationObserver(() => {
        const body = list.querySelector(".turn.assistant .body");
        if (body) window.lengths.add(body.innerText.length);
      }).observe(list, { childList: true, subtree: true });
    });
    const before = (await api("GET", "/v1/kvark/conversations")).data.length;
    const id = await send(page, "Name three rivers.", 2);
    assert.ok((await page.evaluate(() => window.lengths.size)) > 3, "the answer grew in steps");
    const held = await conversation(id);
    assert.equal((await api("GET", "/v1/kvark/conversations")).data.length, before + 1);
    assert.deepEqual(held.turns.map((turn) => turn.role), ["user", "assistant"]);
    assert.equal((await texts(page, ".turn.user .body"))[0], "Name three rivers.");
    const answer = await page.locator(".turn.assistant .body").innerText();
    assert.match(await page.locator(".turn.assistant").innerText(), /of \d+ prompt tokens reused/);
    assert.match(await page.locator(".turn.assistant").innerText(), /24 tokens, [\d.]+ per second/);
    await shot(page, "chat");
    await page.reload();
    await settled(page, 2);
    assert.equal(await page.locator(".turn.assistant .body").innerText(), answer);
    assert.match(await page.locator(".turn.assistant").innerText(), /per second/);
  }));

test("a visit leaves no empty conversation", async () => {
  const before = (await api("GET", "/v1/kvark/conversations")).data.length;
  await onPage(async (page) => {
    await page.locator("#new").click();
    await page.reload();
    await shot(page, "new");
  });
  assert.equal((await api("GET", "/v1/kvark/conversations")).data.length, before);
});

test("stop ends the answer and frees the server", () =>
  onPage(
    async (page) => {
      await page.locator("#input").fill("Write a very long story about a lighthouse.");
      await page.locator("#send").click();
      await page.waitForFunction(() => document.querySelector(".turn.assistant .body")?.innerText.length > 20);
      await shot(page, "running");
      await page.locator("#stop").click();
      await page.getByText("Stopped.").waitFor();
      await page.locator("#send:not([hidden])").waitFor();
      assert.ok((await page.locator(".turn.assistant .body").innerText()).length > 20, "the text stays");
      await page.waitForFunction(async () => (await (await fetch("/slots")).json()).every((slot) => !slot.is_processing));
    },
    { settings: LONG },
  ));

test("settings persist, and the system prompt begins the conversation", () =>
  onPage(async (page) => {
    await page.locator("#toggle-settings").click();
    await page.locator("#system").fill("You are a pirate.");
    await page.locator("#top_k").fill("7");
    await page.waitForFunction(() => document.getElementById("temperature").placeholder !== "");
    await shot(page, "settings");
    await page.locator("#close-settings").click();
    assert.deepEqual(await texts(page, ".turn.system .body"), ["You are a pirate."]);
    await page.reload();
    assert.equal(await page.locator("#top_k").inputValue(), "7");
    assert.equal(await page.locator("#temperature").inputValue(), "0");
    const [request] = await Promise.all([
      page.waitForRequest((request) => request.url().endsWith("/v1/chat/completions")),
      send(page, "Who are you?", 3),
    ]);
    assert.equal(request.postDataJSON().top_k, 7);
    assert.equal(request.postDataJSON().min_p, undefined);
    const held = await conversation(request.postDataJSON().conversation);
    assert.equal(held.turns[0].content, "You are a pirate.");
    assert.deepEqual(await texts(page, ".turn.system .body"), ["You are a pirate."]);
    await shot(page, "system");
  }));

test("an error of the server is shown, and the text can be sent again", () =>
  onPage(
    async (page) => {
      const text = "word ".repeat(6000).trim();
      const before = (await api("GET", "/v1/kvark/conversations")).data.length;
      await page.locator("#input").fill(text);
      await page.locator("#input").press("Enter");
      await page.locator(".note.error").waitFor();
      assert.match(await page.locator(".note.error").innerText(), /token|context|long/);
      await page.waitForFunction(() => document.getElementById("input").value.length > 0);
      assert.equal(await page.locator("#input").inputValue(), text);
      await shot(page, "error");
      await page.locator("#send:not([hidden])").waitFor();
      assert.equal((await api("GET", "/v1/kvark/conversations")).data.length, before, "no conversation is left behind");
      const id = await send(page, "Name a river.", 2);
      await page.locator("#input").fill(text);
      await page.locator("#input").press("Enter");
      await page.locator(".note.error").waitFor();
      await page.locator("#send:not([hidden])").waitFor();
      await send(page, "Name a lake.", 4);
      assert.deepEqual((await conversation(id)).turns.map((turn) => turn.role), ["user", "assistant", "user", "assistant"]);
    },
    { failing: true },
  ));

test("HTML in messages and answers is text", async () => {
  const evil = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>';
  const messages = [
    { role: "user", content: evil },
    { role: "assistant", content: `${evil}\n\n**${evil}**\n\n- ${evil}\n\n|a|b|\n|-|-|\n|${evil}|x|\n\n[x](javascript:alert(1))` },
  ];
  const { id } = await api("POST", "/v1/kvark/conversations", { messages });
  await onPage(
    async (page) => {
      await settled(page, 2);
      assert.equal(await page.evaluate(() => window.hacked), undefined);
      assert.equal(await page.locator("main img, main script, main a").count(), 0);
      assert.equal(await page.locator(".turn.user .body").innerText(), evil);
      assert.ok((await page.locator(".turn.assistant .body").innerText()).includes(evil));
      assert.ok((await branch(page, id).innerText()).includes("<img"));
    },
    { hash: id },
  );
});

test("markdown becomes lists, tables and code", async () => {
  const content = "# Rivers\n\n1. **Rhine**\n\n2. *Danube*\n\n| name | km |\n|---|---|\n| Rhine | 1233 |\n\n```py\nprint(2*3*4)\n```\n\n2*3*4 `x`";
  const messages = [{ role: "user", content: "Rivers?" }, { role: "assistant", content }];
  const { id } = await api("POST", "/v1/kvark/conversations", { messages });
  await onPage(
    async (page) => {
      await settled(page, 2);
      assert.deepEqual(await texts(page, ".body ol li"), ["Rhine", "Danube"]);
      assert.deepEqual(await texts(page, ".body td"), ["Rhine", "1233"]);
      assert.equal(await page.locator(".body pre code[data-language=py]").innerText(), "print(2*3*4)");
      assert.equal(await page.locator(".body p").last().innerText(), "2*3*4 x");
      await shot(page, "markdown");
    },
    { hash: id },
  );
});

test("tokens show their probabilities on hover and by keyboard, also after a reload", () =>
  onPage(
    async (page) => {
      const id = await send(page, "Name a colour.", 2);
      const { tokens } = (await conversation(id)).turns[1];
      for (const round of ["first", "reloaded"]) {
        assert.equal(await page.locator(".token").count(), tokens, round);
        await page.locator(".token").nth(2).hover();
        assert.match(await page.locator("#token-info").innerText(), /[\d.]+ %/);
        assert.ok((await page.locator("#token-info .row").count()) >= 5);
        const shown = await page.locator("#token-info .chosen code").innerText();
        assert.equal(JSON.parse(shown), await page.locator(".token").nth(2).evaluate((span) => span.textContent));
        await shot(page, `tokens-${round}`);
        await page.mouse.move(0, 0);
        await page.locator("#token-info").waitFor({ state: "hidden" });
        await page.locator(".tokens").focus();
        await page.keyboard.press("ArrowRight");
        await page.locator("#token-info").waitFor();
        await page.reload();
        await settled(page, 2);
      }
    },
    { settings: { probabilities: true } },
  ));

test("the keyboard is enough", () =>
  onPage(
    async (page) => {
      await page.locator("#model").focus();
      const order = [];
      for (let i = 0; i < 2; i++) {
        await page.keyboard.press("Tab");
        order.push(await page.evaluate(() => document.activeElement.id));
      }
      assert.deepEqual(order, ["new", "toggle-settings"]);
      await page.keyboard.press("Enter");
      await page.locator("#settings[open]").waitFor();
      await page.keyboard.press("Escape");
      await page.locator("#settings").waitFor({ state: "hidden" });
      await page.locator("#input").focus();
      await page.keyboard.type("Write a very long story about a mountain.");
      await page.keyboard.press("Enter");
      await page.waitForFunction(() => document.querySelector(".turn.assistant .body")?.innerText.length > 10);
      await page.keyboard.press("Escape");
      await page.getByText("Stopped.").waitFor();
      await page.keyboard.press("Alt+n");
      await page.waitForFunction(() => document.querySelectorAll(".turn").length === 0 && !location.hash);
      assert.equal(await page.evaluate(() => document.activeElement.id), "input");
      await page.keyboard.press("Tab");
      await page.keyboard.press("Tab");
      assert.equal(await page.evaluate(() => document.activeElement.id), "cells");
      await page.keyboard.press("ArrowRight");
      await page.waitForFunction(() => document.getElementById("cell-info").textContent.startsWith("cell 0"));
    },
    { settings: LONG },
  ));

test("a narrow screen shows one panel at a time and never scrolls sideways", () =>
  onPage(
    async (page) => {
      const fits = async (where) => {
        const wide = await page.evaluate(() =>
          [...document.querySelectorAll("html, header, nav, aside, #turns, dialog")]
            .filter((box) => box.scrollWidth > box.clientWidth)
            .map((box) => box.id || box.tagName),
        );
        assert.deepEqual(wide, [], where);
      };
      await send(page, `Say ${"long".repeat(60)} and a list of rivers.`, 2);
      await fits("chat");
      await shot(page, "narrow-chat");
      await page.locator("#toggle-cache").click();
      await page.locator("#cells").waitFor();
      await page.waitForFunction(() => Number(document.getElementById("cells").dataset.used) > 0);
      await fits("cache");
      await shot(page, "narrow-cache");
      await page.locator("#toggle-tree").click();
      await page.locator("#tree .branch.current").waitFor();
      assert.equal(await page.locator("#cells").isVisible(), false);
      assert.equal(await page.locator("#toggle-tree").getAttribute("aria-expanded"), "true");
      await fits("branches");
      await shot(page, "narrow-tree");
      await page.locator("#tree .branch.current .name").click();
      await page.locator("#input").waitFor();
      assert.equal(await page.locator("#tree").isVisible(), false);
      await page.locator("#toggle-settings").click();
      await fits("settings");
      await shot(page, "narrow-settings");
    },
    { viewport: { width: 390, height: 800 } },
  ));

for (const colorScheme of ["light", "dark"]) {
  test(`text is readable in ${colorScheme}`, () =>
    onPage(
      async (page) => {
        await send(page, "Name a river.", 2);
        const ratios = await page.evaluate(() => {
          const channels = (color) => color.match(/[\d.]+/g).map(Number);
          const light = (color) => {
            const [r, g, b] = channels(color).map((c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const behind = (element) => {
            const color = getComputedStyle(element).backgroundColor;
            return channels(color)[3] === 0 ? behind(element.parentElement) : color;
          };
          return [...document.querySelectorAll("h1, h2, .body, .note, .role, #figures dt, #tree .answer, #send, #new")].map((e) => {
            const pair = [light(getComputedStyle(e).color), light(behind(e))].sort((a, b) => b - a);
            return [e.id || e.className || e.tagName, (pair[0] + 0.05) / (pair[1] + 0.05), light(behind(document.body)) < 0.2];
          });
        });
        for (const [name, ratio, dark] of ratios) {
          assert.ok(ratio >= 4.5, `${name}: contrast ${ratio.toFixed(1)}`);
          assert.equal(dark, colorScheme === "dark");
        }
        await shot(page, colorScheme);
      },
      { colorScheme },
    ));
}

// KVARK_UPDATE=1 makes the picture of the documentation again.
test("the picture of the documentation is of this page", async () => {
  const content = "The **Rhine** is longer:\n\n| river | length in km |\n|:--|--:|\n| Rhine | 1233 |\n| Seine | 777 |\n\n```python\nlonger = max(1233, 777)\n```\n\nThe ratio is $\\frac{1233}{777} \\approx 1.59$.";
  const id = await begin([
    { role: "user", content: "Which is longer, the Rhine or the Seine?" },
    { role: "assistant", content, reasoning_content: "I compare their lengths." },
  ]);
  const fork = await api("POST", `/v1/kvark/conversations/${id}/fork`, { at: { turn: 1 } });
  await api("POST", `/v1/kvark/conversations/${id}/fork`);
  await onPage(
    async (page) => {
      await settled(page, 2);
      await page.waitForFunction(() => Number(document.getElementById("cells").dataset.used) > 0);
      assert.equal(await page.locator(".body math mfrac").count(), 1);
      assert.equal(await page.locator(`#tree li:has(> [data-id="${id}"]) > ul > li`).count(), 2);
      const picture = new URL("../../../../docs/page.png", import.meta.url).pathname;
      if (process.env.KVARK_UPDATE) await page.screenshot({ path: picture });
      const { size } = await stat(picture);
      assert.ok(size > 20_000 && size < 200_000, `${size} bytes`);
    },
    { hash: id },
  );
  assert.ok(fork.id);
});
