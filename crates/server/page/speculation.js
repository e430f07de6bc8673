// The trees of speculative decoding: each round of the last answer, with the accepted path and the rejected branches.

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const LINE = 20;
const LEVEL = 104;
// Where the line to a child begins, after the longest text of a node.
const TEXT = 76;
const MOST_LETTERS = 7;

let rounds = [];
let shown = -1;
let waiting = false;

// Begins a new answer. The rounds of the last one stay until the first new one comes.
export function begin() {
  waiting = true;
}

// Shows a round as soon as it is verified, unless the reader looks at an earlier one.
export function add(round) {
  if (waiting) {
    rounds = [];
    shown = -1;
    waiting = false;
  }
  const follows = shown === rounds.length - 1;
  rounds.push(round);
  $("speculation").hidden = false;
  $("spec-round").max = rounds.length;
  if (follows) show(rounds.length - 1);
  summarise();
}

function summarise() {
  const drafted = rounds.reduce((sum, round) => sum + round.tokens.length - 1, 0);
  const accepted = rounds.reduce((sum, round) => sum + round.accepted.length - 1, 0);
  const mean = (rounds.length + accepted) / rounds.length;
  $("spec-summary").textContent = `${accepted} of ${drafted} candidates accepted, ${mean.toFixed(2)} tokens a round`;
}

function show(index) {
  if (index < 0 || index >= rounds.length) return;
  shown = index;
  const round = rounds[index];
  const tree = $("spec-tree");
  $("spec-round").value = index + 1;
  tree.dataset.round = index + 1;
  const by = round.proposer ?? "no proposer";
  const times = `proposed in ${round.propose_ms.toFixed(1)} ms, verified in ${round.verify_ms.toFixed(1)} ms`;
  $("spec-line").textContent = `Round ${index + 1} of ${rounds.length}: ${by}, ${times}`;
  tree.setAttribute("aria-label", describe(round));
  tree.replaceChildren(draw(round));
}

// The round in words.
function describe(round) {
  const path = round.accepted.slice(1).map((node) => JSON.stringify(round.tokens[node]));
  const accepted = path.length ? `accepted ${path.join(", ")}` : "accepted nothing";
  return `Tree of ${round.tokens.length - 1} candidates: ${accepted}; the model went on with ${JSON.stringify(round.bonus)}`;
}

// The level and the line of every node: a first child is on the line of its parent.
export function places(parents) {
  const found = [];
  const parentsWithChild = new Set();
  let lines = 0;
  for (const parent of parents) {
    if (parent === null) {
      found.push([0, 0]);
      continue;
    }
    const [level, line] = found[parent];
    const first = !parentsWithChild.has(parent);
    parentsWithChild.add(parent);
    found.push([level + 1, first ? line : ++lines]);
  }
  return found;
}

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const visible = (text) => text.replaceAll(" ", "·").replaceAll("\n", "⏎");
const short = (text) => (visible(text).length > MOST_LETTERS ? `${visible(text).slice(0, MOST_LETTERS - 1)}…` : visible(text));

function draw(round) {
  const at = places(round.parents);
  const accepted = new Set(round.accepted);
  const last = round.accepted[round.accepted.length - 1];
  const levels = 2 + Math.max(...at.map(([level]) => level));
  const lines = 1 + Math.max(...at.map(([, line]) => line));
  const picture = element("svg", { width: levels * LEVEL, height: lines * LINE + 4 });
  at.forEach(([level, line], node) => {
    const kind = accepted.has(node) ? "accepted" : "rejected";
    const [x, y] = [level * LEVEL, line * LINE + LINE / 2 + 2];
    const parent = round.parents[node];
    if (parent !== null) {
      const from = at[parent][1] * LINE + LINE / 2 + 2;
      const d = `M${x - LEVEL + TEXT} ${from}C${x - 14} ${from} ${x - 14} ${y} ${x - 3} ${y}`;
      picture.append(element("path", { class: kind, d }));
    }
    const estimate = parent === null ? "" : ` ${(round.probabilities[node] * 100).toFixed(0)} %`;
    const text = element("text", { class: `node ${kind}`, x, y: y + 4 }, short(round.tokens[node]) + estimate);
    text.append(element("title", {}, `${JSON.stringify(round.tokens[node])}, ${kind}${estimate && `, estimated${estimate}`}`));
    picture.append(text);
    if (node === last) {
      picture.append(element("text", { class: "bonus", x: (levels - 1) * LEVEL, y: y + 4 }, `→ ${short(round.bonus)}`));
    }
  });
  return picture;
}

$("spec-round").addEventListener("input", () => show(Number($("spec-round").value) - 1));
$("spec-before").addEventListener("click", () => show(shown - 1));
$("spec-after").addEventListener("click", () => show(shown + 1));
