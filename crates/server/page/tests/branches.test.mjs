// Branches: fork by editing or answering again, switch, keep, delete, rewind, and what other tabs see.

import assert from "node:assert/strict";
import { test } from "node:test";
import { api, branch, conversation, newTab, onPage, send, settled, shot, texts } from "./browser.mjs";

const hashIs = (page, id) => page.waitForFunction((id) => location.hash === `#${id}`, id);
const hashIsNot = async (page, id) => {
  await page.waitForFunction((id) => location.hash.length > 1 && location.hash !== `#${id}`, id);
  return page.evaluate(() => location.hash.slice(1));
};

test("edit forks, again forks, branches switch, keep deletes the others", () =>
  onPage(
    async (page) => {
      const first = await send(page, "Name a river of France.", 2);
      const answer = await page.locator(".turn.assistant .body").innerText();
      await page.locator(".turn.user").hover();
      await page.getByRole("button", { name: "edit" }).click();
      await page.getByLabel("Edit the message").fill("Name a river of Italy.");
      await shot(page, "edit");
      await page.getByLabel("Edit the message").press("Enter");
      const edited = await hashIsNot(page, first);
      await settled(page, 2);
      assert.deepEqual(await texts(page, ".turn.user .body"), ["Name a river of Italy."]);
      assert.equal((await conversation(edited)).parent, first);
      assert.equal((await conversation(first)).turns[0].content, "Name a river of France.");

      await branch(page, first).locator(".name").click();
      await hashIs(page, first);
      await settled(page, 2);
      assert.equal(await page.locator(".turn.assistant .body").innerText(), answer);

      await page.locator(".turn.assistant").hover();
      await page.getByRole("button", { name: "again" }).click();
      const again = await hashIsNot(page, first);
      await settled(page, 2);
      assert.deepEqual(await texts(page, ".turn.user .body"), ["Name a river of France."]);
      assert.equal((await conversation(again)).parent, first);
      assert.equal(await page.locator(`#tree li:has(> [data-id="${first}"]) > ul > li`).count(), 2);
      await shot(page, "branches");
      // Names have room. The tree may be drawn again meanwhile.
      await page.waitForFunction((id) => document.querySelector(`#tree [data-id="${id}"] .name`)?.offsetWidth > 180, again);

      await branch(page, edited).hover();
      await branch(page, edited).locator(".keep").click();
      await branch(page, first).waitFor({ state: "detached" });
      await branch(page, again).waitFor({ state: "detached" });
      await hashIs(page, edited);
      assert.equal((await conversation(edited)).parent, null);

      await branch(page, edited).locator(".delete").click();
      await branch(page, edited).waitFor({ state: "detached" });
      assert.equal(await page.locator(".turn").count(), 0);
      const left = (await api("GET", "/v1/kvark/conversations")).data.map((one) => one.id);
      assert.ok(![first, edited, again].some((id) => left.includes(id)));
    },
    { settings: { temperature: "1" } },
  ));

test("cancelling an edit changes nothing", () =>
  onPage(async (page) => {
    const id = await send(page, "Name a lake.", 2);
    await page.locator(".turn.user").hover();
    await page.getByRole("button", { name: "edit" }).click();
    await page.getByLabel("Edit the message").fill("Name a sea.");
    await page.keyboard.press("Escape");
    assert.deepEqual(await texts(page, ".turn.user .body"), ["Name a lake."]);
    assert.deepEqual((await conversation(id)).children, []);
  }));

test("rewind removes later turns; a fork keeps notes and tokens", () =>
  onPage(
    async (page) => {
      const id = await send(page, "Name a river.", 2);
      await send(page, "Name another one.", 4);
      await branch(page, id).locator(".fork").click();
      const fork = await hashIsNot(page, id);
      await settled(page, 4);
      assert.equal(await page.locator(".turn.assistant .tokens").count(), 2);
      await page.locator(".turn.assistant").first().hover();
      await page.getByRole("button", { name: "rewind" }).click();
      await settled(page, 2);
      assert.equal((await conversation(fork)).turns.length, 2);
      assert.equal((await conversation(id)).turns.length, 4);
      assert.match(await page.locator(".turn.assistant").innerText(), /per second/);
      await send(page, "Name a third one.", 4);
      assert.match(await page.locator(".turn.assistant").last().innerText(), /[1-9]\d* of \d+ prompt tokens reused/);
    },
    { settings: { probabilities: true } },
  ));

test("two tabs see each other's branches and turns", () =>
  onPage(async (one, context) => {
    const id = await send(one, "Name a city.", 2);
    const two = await newTab(context, id);
    await settled(two, 2);
    await branch(one, id).locator(".fork").click();
    const fork = await hashIsNot(one, id);
    await branch(two, fork).waitFor();
    await two.locator("#input").fill("And another one.");
    await two.locator("#input").press("Enter");
    await settled(two, 4);
    await branch(one, id).locator(".name").click();
    await settled(one, 4);
    await two.locator("#input").fill("And a third one.");
    await two.locator("#input").press("Enter");
    await settled(one, 6);
    await branch(two, id).locator(".delete").click();
    await one.getByText("The conversation was deleted elsewhere.").waitFor();
    assert.equal(await one.locator(".turn").count(), 0);
  }));

test("a conversation of another client appears without a visit", () =>
  onPage(async (page) => {
    const { id } = await api("POST", "/v1/kvark/conversations", { messages: [] });
    const messages = [{ role: "user", content: "Name a planet." }];
    await api("POST", "/v1/chat/completions", { conversation: id, messages, max_tokens: 32 });
    await branch(page, id).waitFor();
  }));
