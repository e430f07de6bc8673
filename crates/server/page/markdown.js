// Markdown of answers as safe elements: HTML in a text stays text, and what the libraries make of the rest is sanitised.

import { mathML } from "./maths.js";
import { DOMPurify, Marked, hljs } from "./vendor.markdown.js";

// A longer block of code has no colours: it is drawn again with every token that comes.
const HIGHLIGHTED = 20_000;

const escaped = (text) =>
  text.replace(/[&<>"']/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" })[c]);

function link(href, title, inside) {
  if (!/^(https?:\/\/|mailto:)/i.test(href)) return inside;
  const hint = title ? ` title="${escaped(title)}"` : "";
  return `<a href="${escaped(href)}"${hint} target="_blank" rel="noreferrer noopener">${inside}</a>`;
}

const renderer = {
  html({ text, block }) {
    const shown = escaped(text.replace(/\n+$/, "")).replace(/\n/g, "<br>");
    return block ? `<p>${shown}</p>` : shown;
  },
  heading({ tokens, depth }) {
    const level = Math.min(6, depth + 2);
    return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
  },
  link({ href, title, tokens }) {
    return link(href, title, this.parser.parseInline(tokens));
  },
  // Pictures of other hosts are not loaded: they would tell that host who reads what.
  image({ href, title, text }) {
    return link(href, title, escaped(text || href));
  },
  code({ text, lang }) {
    const language = (lang ?? "").match(/^[\w+#.-]+/)?.[0] ?? "";
    const known = text.length <= HIGHLIGHTED && hljs.getLanguage(language);
    const shown = known ? hljs.highlight(text, { language, ignoreIllegals: true }).value : escaped(text);
    const label = language ? `<span class="language">${escaped(language)}</span>` : "";
    return `<div class="code">${label}<pre><code data-language="${escaped(language)}">${shown}</code></pre></div>`;
  },
};

// Formulas: $…$ and \(…\) in a line, $$…$$ and \[…\] on their own. TeX that is not known stays as it is.
function formula(name, level, start, pattern) {
  return {
    name,
    level,
    start: (text) => text.match(start)?.index,
    tokenizer(text) {
      const match = pattern.exec(text);
      return match ? { type: name, raw: match[0], tex: (match[1] ?? match[2]).trim() } : undefined;
    },
    renderer({ raw, tex }) {
      const made = mathML(tex, level === "block");
      if (!made) return level === "block" ? `<p><code>${escaped(raw.trim())}</code></p>` : `<code>${escaped(raw)}</code>`;
      return level === "block" ? `<div class="formula">${made}</div>` : made;
    },
  };
}

const extensions = [
  formula("formulaBlock", "block", /\$\$|\\\[/, /^(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n|$)/),
  formula("formulaLine", "inline", /\$|\\\(/, /^(?:\$(?![\s$])([^$\n]*?[^\s$\\])\$(?![\d$])|\\\((.+?)\\\))/),
];

const tokenizer = {
  // A star between digits is a product: 2*3*4.
  emStrong(text, _masked, before) {
    return /\d$/.test(before ?? "") && /^\*\d/.test(text) ? undefined : false;
  },
};

const marked = new Marked({ gfm: true, breaks: true, renderer, tokenizer, extensions });

const SANITISED = {
  USE_PROFILES: { html: true, mathMl: true },
  ADD_ATTR: ["target"],
  FORBID_TAGS: ["audio", "button", "form", "img", "picture", "style", "textarea", "video"],
  RETURN_DOM_FRAGMENT: true,
};

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Without a secure origin there is no clipboard: the browser's older way needs a selection.
    const field = document.createElement("textarea");
    field.value = text;
    field.className = "unseen";
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}

// Adds what sanitised elements cannot have: copy buttons, and room to scroll.
function finish(fragment) {
  for (const box of fragment.querySelectorAll(".code")) {
    const copy = document.createElement("button");
    copy.type = "button";
    copy.className = "copy";
    copy.textContent = "copy";
    copy.title = "Copy the code";
    copy.addEventListener("click", async () => {
      copy.textContent = (await copyText(box.querySelector("code").textContent)) ? "copied" : "not copied";
    });
    box.prepend(copy);
  }
  for (const table of fragment.querySelectorAll("table")) {
    const scroll = document.createElement("div");
    scroll.className = "scroll";
    table.replaceWith(scroll);
    scroll.append(table);
  }
  return fragment;
}

const drawn = new WeakMap();

// Renders a text into `target`. Blocks that are the same as before stay: an answer that grows draws its last block only.
export function render(target, text) {
  const tokens = marked.lexer(text);
  const before = drawn.get(target) ?? [];
  const isThere = (block) => block.nodes.every((node) => node.parentNode === target);
  let same = 0;
  while (same < before.length && same < tokens.length && before[same].raw === tokens[same].raw && isThere(before[same])) same++;
  const kept = before.slice(0, same);
  if (!kept.length) target.replaceChildren();
  for (const block of before.slice(same)) block.nodes.forEach((node) => node.remove());
  for (const token of tokens.slice(same)) {
    const fragment = finish(DOMPurify.sanitize(marked.parser([token]), SANITISED));
    const nodes = [...fragment.childNodes];
    target.append(fragment);
    kept.push({ raw: token.raw, nodes });
  }
  drawn.set(target, kept);
}
