// A small, safe subset of Markdown: the text only ever becomes text nodes.

function inline(parent, text) {
  const pattern = /(`[^`]+`)|(\*\*[^*]+\*\*)|((?<![\w*])\*[^*\s][^*]*\*(?!\w))|(https?:\/\/[^\s)]+)/g;
  let at = 0;
  for (const match of text.matchAll(pattern)) {
    parent.append(text.slice(at, match.index));
    const [whole, code, strong, emphasis, link] = match;
    let element;
    if (code) {
      element = document.createElement("code");
      element.textContent = code.slice(1, -1);
    } else if (strong) {
      element = document.createElement("strong");
      element.textContent = strong.slice(2, -2);
    } else if (emphasis) {
      element = document.createElement("em");
      element.textContent = emphasis.slice(1, -1);
    } else {
      element = document.createElement("a");
      element.href = link;
      element.rel = "noreferrer noopener";
      element.target = "_blank";
      element.textContent = link;
    }
    parent.append(element);
    at = match.index + whole.length;
  }
  parent.append(text.slice(at));
}

function add(parent, tag) {
  const element = document.createElement(tag);
  parent.append(element);
  return element;
}

function codeBlock(target, language, text) {
  const box = add(target, "div");
  box.className = "code";
  const copy = add(box, "button");
  copy.type = "button";
  copy.className = "copy";
  copy.textContent = "copy";
  copy.title = "Copy the code";
  copy.addEventListener("click", async () => {
    await navigator.clipboard?.writeText(text).catch(() => {});
    copy.textContent = "copied";
  });
  const code = add(add(box, "pre"), "code");
  if (language) code.dataset.language = language;
  code.textContent = text;
}

const cellsOf = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
const isRule = (line) => line !== undefined && /-/.test(line) && /^\s*\|?[\s:|-]+\|[\s:|-]*$/.test(line);

function table(target, lines) {
  const [head, , ...rows] = lines.map(cellsOf);
  const box = add(add(target, "div"), "table");
  box.parentElement.className = "scroll";
  const top = add(add(box, "thead"), "tr");
  head.forEach((cell) => inline(add(top, "th"), cell));
  const body = add(box, "tbody");
  for (const row of rows) {
    const line = add(body, "tr");
    head.forEach((_, i) => inline(add(line, "td"), row[i] ?? ""));
  }
}

// Replaces the children of `target` by the rendered text.
export function render(target, text) {
  target.replaceChildren();
  const lines = text.split("\n");
  let list = null;
  let paragraph = null;
  const close = () => {
    list = null;
    paragraph = null;
  };
  for (let i = 0; i < lines.length; i++) {
    const line = lines[i];
    const fence = line.match(/^\s*```(\w*)/);
    const heading = line.match(/^(#{1,4})\s+(.*)/);
    const item = line.match(/^\s*([-*]|\d+[.)])\s+(.*)/);
    const quote = line.match(/^\s*>\s?(.*)/);
    if (fence) {
      close();
      const content = [];
      for (i++; i < lines.length && !/^\s*```/.test(lines[i]); i++) content.push(lines[i]);
      codeBlock(target, fence[1], content.join("\n"));
    } else if (line.includes("|") && isRule(lines[i + 1])) {
      close();
      const rows = [];
      for (; i < lines.length && lines[i].includes("|"); i++) rows.push(lines[i]);
      i--;
      table(target, rows);
    } else if (heading) {
      close();
      inline(add(target, `h${heading[1].length + 2}`), heading[2]);
    } else if (item) {
      const tag = /\d/.test(item[1]) ? "ol" : "ul";
      if (!list || list.tagName.toLowerCase() !== tag) {
        close();
        list = add(target, tag);
        if (tag === "ol") list.start = parseInt(item[1], 10);
      }
      inline(add(list, "li"), item[2]);
    } else if (line.trim() === "") {
      // Items of a list may have empty lines between them.
      paragraph = null;
    } else if (quote) {
      close();
      inline(add(target, "blockquote"), quote[1]);
    } else {
      list = null;
      if (paragraph) paragraph.append(document.createElement("br"));
      else paragraph = add(target, "p");
      inline(paragraph, line);
    }
  }
}
