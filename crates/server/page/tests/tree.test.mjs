// Trees that stay readable: folded chains, names, search; and conversations as files.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { api, begin, branch, conversation, onPage, settled, shot } from "./browser.mjs";

const base = "/v1/kvark/conversations";
const fork = async (id) => (await api("POST", `${base}/${id}/fork`)).id;

async function chain(length, first) {
  const ids = [first];
  while (ids.length < length) ids.push(await fork(ids.at(-1)));
  return ids;
}

test("a chain of 300 forks is folded, without indents, and opens", async () => {
  const ids = await chain(300, await begin([{ role: "user", content: "The longest chain." }]));
  await onPage(
    async (page) => {
      await settled(page, 1);
      const more = page.locator("#tree .unfold");
      await more.first().waitFor();
      assert.deepEqual(await more.allInnerTexts(), ["… 146 more", "… 147 more"]);
      for (const id of [ids[0], ids[1], ids[149], ids[298], ids[299]]) assert.equal(await branch(page, id).count(), 1);
      assert.equal(await branch(page, ids[100]).count(), 0);
      assert.equal(await page.locator(`#tree > li > ul [data-id="${ids[149]}"]`).count(), 0, "no indent");
      await shot(page, "folded");
      await more.first().click();
      await branch(page, ids[100]).waitFor();
      const widths = [await branch(page, ids[0]).boundingBox(), await branch(page, ids[299]).boundingBox()];
      assert.equal(widths[0].width, widths[1].width);
    },
    { hash: ids[149] },
  );
  await api("POST", `${base}/${ids[0]}/keep`);
  await api("DELETE", `${base}/${ids[0]}`);
});

test("a fork of several is indented below its parent", async () => {
  const [first, second] = await chain(2, await begin([{ role: "user", content: "Two ways." }]));
  const left = await fork(second);
  const right = await fork(second);
  await onPage(
    async (page) => {
      await settled(page, 1);
      const inner = page.locator(`#tree li:has(> [data-id="${second}"]) > ul > li > .branch`);
      assert.deepEqual(await inner.evaluateAll((all) => all.map((one) => one.dataset.id)), [left, right]);
      assert.equal(await page.locator(`#tree > li:has(> [data-id="${second}"])`).count(), 1);
    },
    { hash: first },
  );
});

test("search finds words of every turn", async () => {
  const number = Date.now();
  const id = await begin([
    { role: "user", content: "A question." },
    { role: "assistant", content: `It is Quokka ${number}, of course.` },
  ]);
  await onPage(async (page) => {
    await page.locator("#search").fill(`quokka ${number}, OF`);
    await branch(page, id).waitFor();
    assert.equal(await page.locator("#tree .branch").count(), 1);
    await page.locator("#search").fill("no such words anywhere");
    await page.getByText("Nothing was found.").waitFor();
    await page.locator("#search").fill("");
    await page.waitForFunction(() => document.querySelectorAll("#tree .branch").length > 1);
    assert.equal(await page.getByText("Nothing was found.").isVisible(), false);
  });
});

test("a branch is named, and keeps its name over a reload", async () => {
  const id = await begin([{ role: "user", content: "Name me." }]);
  await onPage(
    async (page) => {
      await branch(page, id).locator(".title").click();
      await page.getByLabel("Name of the branch").fill("The first try");
      await page.getByLabel("Name of the branch").press("Enter");
      await branch(page, id).getByText("The first try").waitFor();
      await page.reload();
      await branch(page, id).getByText("The first try").waitFor();
      await branch(page, id).locator(".title").click();
      await page.getByLabel("Name of the branch").press("Escape");
      assert.equal(await branch(page, id).locator(".question").innerText(), "The first try");
    },
    { hash: id },
  );
});

test("conversations are saved as a file, and the file brings back their tree", async () => {
  const id = await begin([
    { role: "user", content: "To be exported." },
    { role: "assistant", content: "So be it." },
  ]);
  const other = (await api("POST", `${base}/${id}/fork`, { at: { turn: 1 } })).id;
  await onPage(
    async (page, context) => {
      await settled(page, 2);
      const [download] = await Promise.all([page.waitForEvent("download"), page.locator("#export").click()]);
      assert.match(download.suggestedFilename(), /^kvark-conversations-\d{4}-\d\d-\d\d\.json$/);
      const file = JSON.parse(await readFile(await download.path(), "utf8"));
      const own = file.conversations.filter((one) => [id, other].includes(one.id));
      assert.deepEqual(own.map((one) => one.parent), [null, id]);
      assert.deepEqual(own[0].messages.map((one) => one.content), ["To be exported.", "So be it."]);
      // The fork comes first in the file, and has a turn of its own.
      own[1].messages.push({ role: "assistant", content: "Otherwise." });
      const before = (await api("GET", base)).data.map((one) => one.id);
      const json = JSON.stringify({ ...file, conversations: own.reverse() });
      await page.locator("#import-file").setInputFiles({ name: "c.json", mimeType: "application/json", buffer: Buffer.from(json) });
      await page.waitForFunction((n) => document.querySelectorAll("#tree .branch").length >= n, Math.min(before.length + 2, 2));
      const made = async () => (await api("GET", base)).data.filter((one) => !before.includes(one.id));
      await page.waitForFunction(
        async ([base, known]) => (await (await fetch(base)).json()).data.filter((one) => !known.includes(one.id) && one.turns.length === 2).length === 2,
        [base, before],
      );
      const [first, second] = await made();
      assert.deepEqual([first.parent, second.parent], [null, first.id]);
      assert.deepEqual((await conversation(second.id)).turns.map((turn) => turn.content), ["To be exported.", "Otherwise."]);
      assert.equal((await conversation(first.id)).turns[1].content, "So be it.");
    },
    { hash: id },
  );
});

test("a file of something else is refused", () =>
  onPage(async (page) => {
    const upload = (text) => page.locator("#import-file").setInputFiles({ name: "x.json", mimeType: "application/json", buffer: Buffer.from(text) });
    await upload("{");
    await page.getByText("The file is not JSON.").waitFor();
    await upload('{"conversations": []}');
    await page.getByText("The file has no conversations of kvark.").waitFor();
    await upload('{"format": "kvark conversations", "conversations": [{"messages": [1]}]}');
    await page.getByText("The file has a conversation without messages.").waitFor();
  }));

test("what a server has lost is brought back from the browser", async () => {
  const id = await begin([{ role: "user", content: "Do not forget me." }]);
  await onPage(
    async (page) => {
      await settled(page, 1);
      await page.waitForFunction((id) => localStorage.getItem("kvark-kept")?.includes(id), id);
      // The server begins anew, without conversations.
      const lost = (await api("GET", base)).data.map((one) => one.id);
      await page.route(`**${base}`, async (route) => {
        if (route.request().method() !== "GET") return route.continue();
        const { data } = await (await route.fetch()).json();
        return route.fulfill({ json: { object: "list", data: data.filter((one) => !lost.includes(one.id)) } });
      });
      await page.evaluate((id) => {
        const file = JSON.parse(localStorage.getItem("kvark-kept"));
        file.conversations = file.conversations.filter((one) => one.id === id);
        localStorage.setItem("kvark-kept", JSON.stringify(file));
      }, id);
      await page.reload();
      await page.getByText("This browser has kept a conversation.").waitFor();
      await page.locator("#kept-bring").click();
      const back = page.locator("#tree .branch");
      await back.getByText("Do not forget me.").first().waitFor();
      assert.equal(await back.count(), 1);
      assert.equal(await page.locator("#kept").isVisible(), false);
      const again = await back.getAttribute("data-id");
      assert.ok(!lost.includes(again) && (await conversation(again)).turns[0].content === "Do not forget me.");
      // What is deleted stays away.
      await page.waitForFunction((id) => localStorage.getItem("kvark-kept").includes(id), again);
      await back.hover();
      await back.locator(".delete").click();
      await back.waitFor({ state: "detached" });
      assert.equal(await page.locator("#kept").isVisible(), false);
    },
    { hash: id },
  );
});
