// A headless Chromium on the page of a running server.
//
// KVARK_ADDRESS: the server's address. KVARK_PAGE_FILES: a folder whose page files replace those in the server's binary.
// KVARK_SHOTS: a folder for screenshots. CHROMIUM: the browser, /usr/bin/chromium unless given.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before } from "node:test";
import { chromium } from "playwright-core";

export const address = process.env.KVARK_ADDRESS?.replace(/\/$/, "");
if (!address) throw new Error("KVARK_ADDRESS must hold the address of a running kvark server");

const files = process.env.KVARK_PAGE_FILES;
const types = { html: "text/html", css: "text/css", js: "text/javascript", txt: "text/plain" };
let browser;
let policy;

before(async () => {
  const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
  const args = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"];
  browser = await chromium.launch({ executablePath, args });
  policy = (await fetch(address)).headers.get("content-security-policy");
  assert.match(policy, /default-src 'self'/);
});
after(() => browser?.close());

async function serveFiles(context) {
  const ours = (url) => url.origin === new URL(address).origin && /^\/(page\/[\w.]+)?$/.test(url.pathname);
  await context.route(ours, async (route) => {
    const path = new URL(route.request().url()).pathname;
    const name = path === "/" ? "index.html" : path.slice("/page/".length);
    const headers = { "content-security-policy": policy, "content-type": types[name.split(".").pop()] };
    await route.fulfill({ body: await readFile(`${files}/${name}`), headers });
  });
}

export async function api(method, path, body) {
  const response = await fetch(address + path, { method, body: body && JSON.stringify(body) });
  assert.ok(response.ok, `${method} ${path}: ${response.status}`);
  return response.json();
}

export const conversation = (id) => api("GET", `/v1/kvark/conversations/${id}`);

// Begins a conversation of these messages and returns its id.
export const begin = async (messages) => (await api("POST", "/v1/kvark/conversations", { messages })).id;

// Opens the page, runs `use`, and checks that nothing went wrong unseen: no errors in the console unless `failing`, no
// requests to other hosts.
export async function onPage(use, { settings = {}, hash = "", failing = false, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  if (files) await serveFiles(context);
  const errors = [];
  const foreign = [];
  context.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  context.on("weberror", (error) => errors.push(String(error.error())));
  context.on("request", (request) => {
    const url = new URL(request.url());
    if (url.protocol.startsWith("http") && url.origin !== new URL(address).origin) foreign.push(request.url());
  });
  const kept = JSON.stringify({ temperature: "0", max_tokens: "24", ...settings });
  await context.addInitScript((kept) => {
    if (location.protocol === "about:") return;
    if (!localStorage.getItem("kvark-settings")) localStorage.setItem("kvark-settings", kept);
  }, kept);
  try {
    const page = await newTab(context, hash);
    await use(page, context);
    if (!failing) assert.deepEqual(errors, []);
    assert.deepEqual(foreign, []);
  } finally {
    await context.close();
  }
}

export async function newTab(context, hash = "") {
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  await page.goto(`${address}/${hash && `#${hash}`}`);
  await page.locator("#model option").first().waitFor({ state: "attached" });
  await page.locator('#figures dd[data-figure="used"]').waitFor({ state: "attached" });
  return page;
}

// Waits until no answer is running and all turns are the server's.
export async function settled(page, turns) {
  await page.locator("#send:not([hidden])").waitFor({ state: "attached" });
  await page.waitForFunction((n) => document.querySelectorAll("#turns .turn .count:not(:empty)").length === n, turns);
}

export async function send(page, text, turns) {
  await page.locator("#input").fill(text);
  await page.locator("#input").press("Enter");
  await settled(page, turns);
  return page.evaluate(() => location.hash.slice(1));
}

export const texts = (page, selector) => page.locator(selector).allInnerTexts();
export const branch = (page, id) => page.locator(`#tree .branch[data-id="${id}"]`);

export async function shot(page, name) {
  if (process.env.KVARK_SHOTS) await page.screenshot({ path: `${process.env.KVARK_SHOTS}/${name}.png` });
}
