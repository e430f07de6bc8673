// Answers as Markdown: what they may have, what they must not do, formulas, copying.

import assert from "node:assert/strict";
import { test } from "node:test";
import { begin, onPage, settled, shot, texts } from "./browser.mjs";

// Opens a conversation whose answer is this text.
async function answered(content, use, options = {}) {
  const id = await begin([
    { role: "user", content: "Go." },
    { role: "assistant", content },
  ]);
  await onPage(
    async (page, context) => {
      await settled(page, 2);
      await use(page, context);
    },
    { hash: id, ...options },
  );
}

test("lists nest, and tasks have boxes", () =>
  answered("- a\n  - b\n    1. c\n- [x] done\n- [ ] open", async (page) => {
    assert.equal(await page.locator(".body > ul > li > ul > li > ol > li").innerText(), "c");
    const boxes = page.locator(".body li input[type=checkbox]");
    assert.deepEqual(await boxes.evaluateAll((all) => all.map((box) => [box.checked, box.disabled])), [
      [true, true],
      [false, true],
    ]);
  }));

test("tables are aligned and scroll in a box of their own", () =>
  answered("| a | b | c |\n|:--|:-:|--:|\n| 1 | 2 | 3 |", async (page) => {
    const cells = page.locator(".body .scroll td");
    const aligned = await cells.evaluateAll((all) => all.map((cell) => getComputedStyle(cell).textAlign.replace("-webkit-", "")));
    assert.deepEqual(aligned, ["left", "center", "right"]);
  }));

test("links open elsewhere and tell nothing; other schemes are text", () =>
  answered("[one](https://example.com/a) https://example.org/b [bad](javascript:alert(1)) [file](file:///etc/passwd)", async (page) => {
    const links = await page.locator(".body a").evaluateAll((all) => all.map((a) => [a.href, a.target, a.rel]));
    assert.deepEqual(links, [
      ["https://example.com/a", "_blank", "noreferrer noopener"],
      ["https://example.org/b", "_blank", "noreferrer noopener"],
    ]);
    assert.match(await page.locator(".turn.assistant .body").innerText(), /bad file/);
  }));

test("pictures are links and are not loaded", () =>
  answered("![a map](https://example.com/map.png)", async (page) => {
    assert.equal(await page.locator("main img").count(), 0);
    assert.equal(await page.locator(".body a").innerText(), "a map");
  }));

test("code has its language, colours, and copies as it is", () =>
  answered('```rust\nfn main() {\n    println!("<b>");\n}\n```\n\n```nonsense\na < b\n```', async (page, context) => {
    await context.grantPermissions(["clipboard-read", "clipboard-write"]);
    assert.deepEqual(await texts(page, ".body .language"), ["rust", "nonsense"]);
    assert.equal(await page.locator(".body .hljs-keyword").first().innerText(), "fn");
    assert.equal(await page.locator(".body code[data-language=nonsense] span").count(), 0);
    await page.locator(".body .code").first().hover();
    await page.locator(".body .copy").first().click();
    await page.getByText("copied", { exact: true }).waitFor();
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), 'fn main() {\n    println!("<b>");\n}');
    await shot(page, "code");
  }));

test("formulas are drawn, and unknown ones stay as they are", () =>
  answered("Area $\\pi r^2$, not $5 and $6.\n\n$$\\sum_{i=1}^{n} i = \\frac{n(n+1)}{2}$$\n\n\\[\\begin{pmatrix} a & b \\\\ c & d \\end{pmatrix}\\]\n\n$\\unknowable{x}$", async (page) => {
    assert.equal(await page.locator(".body math").count(), 3);
    assert.equal(await page.locator(".body .formula math mfrac").count(), 1);
    assert.equal(await page.locator(".body mtd").count(), 4);
    const text = await page.locator(".turn.assistant .body").innerText();
    assert.match(text, /not \$5 and \$6\./);
    assert.match(text, /\\unknowable\{x\}/);
    await shot(page, "formulas");
  }));

test("nothing that HTML, links or formulas smuggle is run", () => {
  const attacks = [
    "<svg onload=window.hacked=1>",
    "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "[x](data:text/html,<script>window.hacked=1</script>)",
    '[x](https://e.com/"onmouseover="window.hacked=1)',
    "![x](x\"onerror=\"window.hacked=1)",
    "<math><mtext><style><img src=x onerror=window.hacked=1></style></mtext></math>",
    "$\\text{<img src=x onerror=window.hacked=1>}$",
    "```<img/src=x/onerror=window.hacked=1>\ncode\n```",
    '<a href="#" style="position:fixed;inset:0">cover</a>',
    "<form action=https://e.com><input name=q></form>",
  ];
  return answered(attacks.join("\n\n"), async (page) => {
    assert.equal(await page.locator(".body :is(svg, iframe, img, script, style, form, object, embed)").count(), 0);
    const handlers = await page.locator(".body *").evaluateAll((all) =>
      all.flatMap((element) => element.getAttributeNames()).filter((name) => name.startsWith("on") || name === "style"),
    );
    assert.deepEqual(handlers, []);
    assert.equal(await page.evaluate(() => window.hacked), undefined);
    assert.match(await page.locator(".turn.assistant .body").innerText(), /<svg onload=window\.hacked=1>/);
  });
});

test("a message is copied as it was written", () =>
  answered("**bold** and `code`", async (page, context) => {
    await context.grantPermissions(["clipboard-read", "clipboard-write"]);
    await page.locator(".turn.assistant").hover();
    await page.locator(".turn.assistant .verbs").getByRole("button", { name: "copy" }).click();
    await page.locator(".turn.assistant .verbs").getByRole("button", { name: "copied" }).waitFor();
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "**bold** and `code`");
  }));

test("an answer that grows draws only its last block again", () =>
  onPage(async (page) => {
    const same = await page.evaluate(async () => {
      const { render } = await import("/page/markdown.js");
      const target = document.createElement("div");
      render(target, "# One\n\nTwo");
      const [first] = target.children;
      render(target, "# One\n\nTwo and three\n\n- four");
      const kept = target.children[0] === first;
      const blocks = [...target.children].map((block) => block.textContent.trim());
      render(target, "# Other");
      return [kept, blocks, target.textContent.trim(), target.children.length];
    });
    assert.deepEqual(same, [true, ["One", "Two and three", "four"], "Other", 1]);
  }));
