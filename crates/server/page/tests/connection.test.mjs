// A server that wants a key, that goes away and comes back, and the time to the first paint.

import assert from "node:assert/strict";
import { test } from "node:test";
import { address, api, onPage, send, settled, shot } from "./browser.mjs";

// Answers requests of the API as a server with this key does.
const withKey = (page, key) =>
  page.route("**/{v1,props,slots}/**", async (route) => {
    const given = route.request().headers().authorization;
    if (given === `Bearer ${key}`) return route.continue();
    const error = { message: "the API key is missing or wrong", type: "authentication_error" };
    return route.fulfill({ status: 401, json: { error } });
  });

test("a server that wants a key is given one", () =>
  onPage(
    async (page) => {
      await withKey(page, "secret");
      await page.reload();
      await page.locator("#locked").waitFor();
      assert.equal(await page.evaluate(() => document.activeElement.id), "locked-key");
      await shot(page, "key");
      await page.locator("#locked-key").fill("wrong");
      await page.locator("#locked-key").press("Enter");
      await page.waitForFunction(() => !document.getElementById("locked").hidden && document.getElementById("locked-key").value === "");
      await page.locator("#locked-key").fill("secret");
      await page.locator("#locked-key").press("Enter");
      await page.locator("#locked").waitFor({ state: "hidden" });
      await page.locator("#model option").first().waitFor({ state: "attached" });
      await send(page, "Name a river.", 2);
      assert.equal(await page.locator("#key").inputValue(), "secret");
      assert.equal(await page.locator("#status").innerText(), "");
    },
    { failing: true },
  ));

test("a page that lost its server says so and connects again by itself", () =>
  onPage(
    async (page, context) => {
      await send(page, "Name a river.", 2);
      await context.setOffline(true);
      await page.locator("#input").fill("Name a lake.");
      await page.locator("#input").press("Enter");
      await page.locator("#lost").waitFor();
      assert.match(await page.locator(".note.error").innerText(), /does not answer/);
      assert.doesNotMatch(await page.locator("body").innerText(), /Failed to fetch|NetworkError/);
      await shot(page, "lost");
      // Another client goes on meanwhile.
      const id = await page.evaluate(() => location.hash.slice(1));
      const messages = [{ role: "user", content: "Name a sea." }];
      await api("POST", "/v1/chat/completions", { conversation: id, messages, max_tokens: 8 });
      await context.setOffline(false);
      await page.locator("#lost").waitFor({ state: "hidden" });
      await settled(page, 4);
      assert.equal(await page.locator(".turn.user .body").last().innerText(), "Name a sea.");
      await send(page, "Name a city.", 6);
    },
    { failing: true },
  ));

test("an answer that breaks off says so", () =>
  onPage(
    async (page) => {
      await page.route("**/v1/chat/completions", (route) => route.abort("connectionreset"));
      await page.locator("#input").fill("Name a river.");
      await page.locator("#input").press("Enter");
      await page.locator(".note.error").waitFor();
      assert.match(await page.locator(".note.error").innerText(), /does not answer|broke off/);
      await page.locator("#lost").waitFor({ state: "hidden" });
      assert.equal(await page.locator("#input").inputValue(), "Name a river.");
    },
    { failing: true },
  ));

// The times to the first paint of a path, in milliseconds.
async function paints(path) {
  const times = [];
  const visit = async (page) => {
    for (let number = 0; number < 8; number++) {
      await page.goto(`${address}${path}`);
      await page.waitForFunction(() => performance.getEntriesByName("first-paint").length);
      times.push(await page.evaluate(() => performance.getEntriesByName("first-paint")[0].startTime));
    }
  };
  // A text has no icon, which browsers ask for.
  await onPage(visit, { failing: true });
  return times;
}

// How fast it is painted depends on what else the machine does: it is told, and decides nothing.
test("the page is painted", async (context) => {
  const times = await paints("/");
  const plain = await paints("/page/licences.txt");
  assert.equal(times.length, 8);
  const least = (all) => Math.min(...all).toFixed(0);
  context.diagnostic(`first paint ${least(times)} ms, of a plain text ${least(plain)} ms`);
});

test("the page is smaller than 400 KB", () =>
  onPage(async (page) => {
    const sizes = await page.evaluate(() => {
      const files = performance.getEntriesByType("resource").filter((entry) => new URL(entry.name).pathname.startsWith("/page/"));
      return [...files, ...performance.getEntriesByType("navigation")].map((entry) => entry.decodedBodySize);
    });
    const bytes = sizes.reduce((sum, size) => sum + size, 0);
    assert.ok(sizes.length > 15 && bytes > 100_000 && bytes < 400_000, `${bytes} bytes in ${sizes.length} files`);
  }));
