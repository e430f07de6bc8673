// A small, safe subset of Markdown: the text only ever becomes text nodes.

function inline(parent, text) {
  const pattern = /(`[^`]+`)|(\*\*[^*]+\*\*)|(\*[^*\s][^*]*\*)|(https?:\/\/[^\s)]+)/g;
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
    if (fence) {
      close();
      const code = add(add(target, "pre"), "code");
      if (fence[1]) code.dataset.language = fence[1];
      const content = [];
      for (i++; i < lines.length && !/^\s*```/.test(lines[i]); i++) content.push(lines[i]);
      code.textContent = content.join("\n");
      continue;
    }
    const heading = line.match(/^(#{1,4})\s+(.*)/);
    const item = line.match(/^\s*([-*]|\d+[.)])\s+(.*)/);
    if (heading) {
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
      close();
    } else {
      if (list) close();
      if (paragraph) paragraph.append(document.createElement("br"));
      else paragraph = add(target, "p");
      inline(paragraph, line);
    }
  }
}
