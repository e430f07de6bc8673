// The trees of speculative decoding.

import assert from "node:assert/strict";
import { test } from "node:test";
import { onPage, send, shot } from "./browser.mjs";

const settings = { spec_type: "ngram", max_tokens: "48" };
const prompt = "Repeat this list twice: apple, pear, plum, cherry, quince, apricot.";
const total = (page) => page.locator("#spec-round").getAttribute("max").then(Number);

test("an answer without speculation shows no trees", () =>
  onPage(async (page) => {
    await send(page, "Name a colour.", 2);
    assert.equal(await page.locator("#speculation").isVisible(), false);
  }));

test("every round is drawn with its accepted path and its rejected branches", () =>
  onPage(
    async (page) => {
      await page.locator("#input").fill(prompt);
      await page.locator("#input").press("Enter");
      // The first trees come before the answer has ended.
      await page.locator("#spec-tree svg").waitFor();
      await page.locator("#send:not([hidden])").waitFor({ state: "attached" });
      const rounds = await total(page);
      assert.ok(rounds > 1 && rounds < 48, `${rounds} rounds for 48 tokens`);
      // The last round is shown; every other one can be.
      assert.equal(await page.locator("#spec-tree").getAttribute("data-round"), String(rounds));
      let accepted = 0;
      let drafted = 0;
      let rejected = 0;
      for (let round = 1; round <= rounds; round++) {
        await page.locator("#spec-round").fill(String(round));
        assert.equal(await page.locator("#spec-tree").getAttribute("data-round"), String(round));
        const nodes = await page.locator("#spec-tree text.node").count();
        const kept = await page.locator("#spec-tree text.accepted").count();
        assert.ok(kept >= 1, "the root is accepted");
        assert.equal(await page.locator("#spec-tree path").count(), nodes - 1);
        assert.equal(await page.locator("#spec-tree path.accepted").count(), kept - 1);
        assert.equal(await page.locator("#spec-tree text.bonus").count(), 1);
        drafted += nodes - 1;
        accepted += kept - 1;
        rejected += await page.locator("#spec-tree text.rejected").count();
        if (nodes > 1) assert.match(await page.locator("#spec-tree text.node").nth(1).textContent(), /\d %/);
      }
      assert.equal(drafted, accepted + rejected);
      assert.ok(accepted > 0, "a list that is repeated is looked up");
      const mean = ((rounds + accepted) / rounds).toFixed(2);
      const summary = await page.locator("#spec-summary").textContent();
      assert.equal(summary, `${accepted} of ${drafted} candidates accepted, ${mean} tokens a round`);
      await page.locator("#spec-before").click();
      assert.equal(await page.locator("#spec-tree").getAttribute("data-round"), String(rounds - 1));
      await shot(page, "speculation");
      // The server counted the same.
      const note = await page.locator(".turn.assistant .note").allTextContents();
      assert.ok(note.includes(`${accepted} of ${drafted} candidates accepted in ${rounds} rounds`), note.join("; "));
    },
    { settings },
  ));

test("a next answer replaces the trees", () =>
  onPage(
    async (page) => {
      await send(page, prompt, 2);
      const first = await total(page);
      await send(page, "And in reverse order?", 4);
      const second = await total(page);
      assert.ok(second <= 48 && first <= 48, `${first} and ${second} rounds`);
      assert.equal(await page.locator("#spec-tree").getAttribute("data-round"), String(second));
    },
    { settings },
  ));
