// The map of cells and the live figures.

import assert from "node:assert/strict";
import { test } from "node:test";
import { api, branch, onPage, send, settled, shot } from "./browser.mjs";

// The centre of a cell, in the page's coordinates.
async function centre(page, cell) {
  await page.locator("#cells").scrollIntoViewIfNeeded();
  return page.locator("#cells").evaluate((canvas, cell) => {
    const [columns, size] = [Number(canvas.dataset.columns), Number(canvas.dataset.size)];
    const box = canvas.getBoundingClientRect();
    const x = box.left + canvas.clientLeft + ((cell % columns) + 0.4) * size;
    return [x, box.top + canvas.clientTop + (Math.floor(cell / columns) + 0.4) * size];
  }, cell);
}

// The distinct colours of a cell's pixels.
const colours = (page, cell) =>
  page.locator("#cells").evaluate((canvas, cell) => {
    const [columns, size] = [Number(canvas.dataset.columns), Number(canvas.dataset.size)];
    const pen = canvas.getContext("2d");
    const { data } = pen.getImageData((cell % columns) * size, Math.floor(cell / columns) * size, size - 1, size - 1);
    const all = new Set();
    for (let i = 0; i < data.length; i += 4) all.add(data.slice(i, i + 4).join());
    return all.size;
  }, cell);

test("the map draws cells, names tokens, and stripes what a fork shares", () =>
  onPage(async (page) => {
    await api("DELETE", "/v1/kvark/cache");
    await send(page, "Write about the planet Saturn.", 2);
    await page.waitForFunction(() => Number(document.getElementById("cells").dataset.used) > 20);
    const alone = await api("GET", "/v1/kvark/cache");
    const [cell, position] = alone.sequences[0].runs[0];
    const { texts } = await api("GET", `/v1/kvark/cache/${alone.sequences[0].seq}`);
    assert.notEqual(texts[position + 3], "");
    assert.equal(await colours(page, cell + 3), 1);
    await page.mouse.move(...(await centre(page, cell + 3)));
    const named = `cell ${cell + 3}: token ${JSON.stringify(texts[position + 3])} at position ${position + 3}`;
    await page.waitForFunction((named) => document.getElementById("cell-info").textContent === named, named);

    // Two branches that differ in their last question share everything before it.
    await page.locator(".turn.user").hover();
    await page.getByRole("button", { name: "edit" }).click();
    await page.getByLabel("Edit the message").fill("Write about the planet Jupiter.");
    await page.getByLabel("Edit the message").press("Enter");
    await settled(page, 2);
    await page.waitForFunction(() => Number(document.getElementById("cells").dataset.striped) > 10);
    const state = await api("GET", "/v1/kvark/cache");
    assert.equal(Number(await page.locator("#cells").getAttribute("data-striped")), state.shared);
    assert.equal(await page.locator('#figures dd[data-figure="shared"]').innerText(), String(state.shared));
    await page.mouse.move(0, 0);
    const owners = new Map();
    for (const { runs } of state.sequences) {
      for (const [first, , len] of runs) {
        for (let i = first; i < first + len; i++) owners.set(i, (owners.get(i) ?? 0) + 1);
      }
    }
    const shared = [...owners.keys()].find((one) => owners.get(one) > 1);
    assert.ok((await colours(page, shared)) > 1, "a shared cell has several colours");
    await page.mouse.move(...(await centre(page, shared)));
    await page.waitForFunction((n) => document.getElementById("cell-info").textContent.endsWith(`shared by ${n}`), owners.get(shared));
    await shot(page, "cells");

    await page.locator("#clear-cache").click();
    await page.waitForFunction(() => document.getElementById("cells").dataset.used === "0");
    assert.equal(await page.locator("#owners li").count(), 0);
  }));

test("the dashboard shows what was reused, where it is kept and what left", () =>
  onPage(async (page) => {
    const figure = (name) => page.locator(`#reuse dd[data-figure="${name}"]`);
    const count = async (name) => Number.parseInt(await figure(name).innerText(), 10);
    const [hits, saved] = [await count("hits"), await count("saved")];
    await send(page, "Name a bird.", 2);
    await send(page, "Name another one.", 4);
    await page.waitForFunction(
      ([hits, saved]) => {
        const number = (name) => Number.parseInt(document.querySelector(`#reuse dd[data-figure="${name}"]`).textContent, 10);
        return number("hits") > hits && number("saved") > saved + 20;
      },
      [hits, saved],
    );
    const state = await api("GET", "/v1/kvark/cache");
    const { requests } = state.reuse;
    const reused = Object.entries(requests).reduce((all, [name, n]) => (name === "none" ? all : all + n), 0);
    assert.equal(await count("hits"), reused);
    assert.equal(await count("saved"), state.counters.cached_tokens);
    assert.match(await figure("gap").innerText(), /^[\d.]+ ms$/);
    assert.ok(state.counters.longest_gap_micros > 0);
    const rungs = await page.locator("#rungs li").evaluateAll((items) => items.map((item) => item.dataset.rung));
    assert.deepEqual(rungs, state.rungs.map((rung) => rung.name));
    assert.equal(rungs[0], "memory");
    assert.ok(Number(await page.locator("#rungs li meter").first().getAttribute("value")) > 0);
    const listed = await page.locator("#evictions li").count();
    assert.equal(listed, Math.min(8, state.evicted.last.length));
    const all = Object.values(state.evicted.reasons).reduce((sum, n) => sum + n, 0);
    assert.equal(all, state.evictions);
    assert.match(await page.locator("#eviction-summary").innerText(), all ? /because/ : /^None so far/);
    await shot(page, "dashboard");
  }));

test("figures follow the server", () =>
  onPage(async (page) => {
    const figure = (name) => page.locator(`#figures dd[data-figure="${name}"]`).innerText();
    const before = Number(await figure("generated"));
    const id = await send(page, "Name a tree.", 2);
    await branch(page, id).waitFor();
    await page.waitForFunction(
      (least) => Number(document.querySelector('#figures dd[data-figure="generated"]').textContent) >= least,
      before + 24,
    );
    const state = await api("GET", "/v1/kvark/cache");
    assert.equal(await figure("used"), `${state.used} of ${state.capacity}`);
    assert.match(await figure("memory"), /^\d+ MB/);
    assert.match(await figure("reused"), /^[\d.]+ %$/);
    assert.ok((await page.locator("#owners li").count()) > 0);
  }));
