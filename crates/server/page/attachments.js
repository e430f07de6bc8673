// Text files that go with a message: chosen, dropped or pasted. They become part of its text, in blocks of their own.

const MOST_BYTES = 1 << 20;

const list = document.getElementById("attachments");
const chooser = document.getElementById("files");
let files = [];

function draw() {
  const items = files.map((file) => {
    const item = document.createElement("li");
    item.textContent = `${file.name} (${file.text.length} characters) `;
    const remove = document.createElement("button");
    remove.type = "button";
    remove.textContent = "×";
    remove.title = `Leave out ${file.name}`;
    remove.setAttribute("aria-label", remove.title);
    remove.addEventListener("click", () => {
      files = files.filter((other) => other !== file);
      draw();
    });
    item.append(remove);
    return item;
  });
  list.replaceChildren(...items);
}

async function read(file) {
  if (file.type.startsWith("image/")) throw new Error(`${file.name}: the models take no pictures, only text.`);
  if (file.size > MOST_BYTES) throw new Error(`${file.name} has more than 1 MiB.`);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (text.includes("\0")) throw new TypeError("binary");
    return { name: file.name.replace(/[\r\n]/g, " "), text: text.replace(/\r\n/g, "\n").replace(/\n$/, "") };
  } catch {
    throw new Error(`${file.name} is not a text file.`);
  }
}

// The fence of a block: longer than any in its text.
function fence(text) {
  const longest = Math.max(2, ...[...text.matchAll(/`{3,}/g)].map((match) => match[0].length));
  return "`".repeat(longest + 1);
}

const block = ({ name, text }) => `File ${name}:\n${fence(text)}\n${text}\n${fence(text)}`;

// A message with the files, which are then no longer there.
export function withFiles(text) {
  const all = [...(text ? [text] : []), ...files.map(block)].join("\n\n");
  files = [];
  draw();
  return all;
}

export const any = () => files.length > 0;

// Divides a message into its text and its files.
export function divide(message) {
  const found = [];
  const text = message.replace(/(?:^|\n\n)File ([^\n]+):\n(`{3,})\n([\s\S]*?)\n\2(?=\n\n|$)/g, (_, name, _fence, inside) => {
    found.push({ name, text: inside });
    return "";
  });
  return { text, files: found };
}

// Takes files from the chooser, from what is dropped on the chat and from what is pasted; `failed` is told what is no text.
export function listen(failed) {
  const take = async (chosen) => {
    for (const file of chosen) {
      try {
        files.push(await read(file));
      } catch (error) {
        failed(error.message);
      }
    }
    draw();
  };
  document.getElementById("attach").addEventListener("click", () => chooser.click());
  chooser.addEventListener("change", async () => {
    await take([...chooser.files]);
    chooser.value = "";
  });
  const chat = document.getElementById("chat");
  chat.addEventListener("dragover", (event) => {
    if (event.dataTransfer.types.includes("Files")) event.preventDefault();
  });
  chat.addEventListener("drop", (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    take([...event.dataTransfer.files]);
  });
  document.getElementById("input").addEventListener("paste", (event) => {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    take([...event.clipboardData.files]);
  });
}
