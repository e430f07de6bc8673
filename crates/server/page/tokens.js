// An answer as tokens, coloured by probability, with the alternatives of the token that is pointed at.

const info = document.getElementById("token-info");
const percent = (logprob) => `${(Math.exp(logprob) * 100).toFixed(1)} %`;

function row(text, logprob, chosen) {
  const line = document.createElement("div");
  line.className = chosen ? "row chosen" : "row";
  const token = document.createElement("code");
  token.textContent = JSON.stringify(text);
  const bar = document.createElement("meter");
  bar.value = Math.exp(logprob);
  const value = document.createElement("span");
  value.textContent = percent(logprob);
  line.append(token, bar, value);
  return line;
}

function show(span, token) {
  const others = token.top_logprobs.filter((other) => other.id !== token.id);
  const rows = others.map((other) => row(other.token, other.logprob, false));
  info.replaceChildren(row(token.token, token.logprob, true), ...rows);
  info.hidden = false;
  const at = span.getBoundingClientRect();
  const below = at.bottom + info.offsetHeight + 6 < window.innerHeight;
  const left = Math.max(4, Math.min(at.left, window.innerWidth - info.offsetWidth - 4));
  info.style.left = `${left}px`;
  info.style.top = `${below ? at.bottom + 4 : Math.max(4, at.top - info.offsetHeight - 4)}px`;
}

function hide() {
  info.hidden = true;
}

// Replaces the children of `target` by the tokens. The arrow keys move from token to token.
export function render(target, tokens) {
  const box = document.createElement("div");
  box.className = "tokens";
  box.tabIndex = 0;
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", "Tokens with their probabilities (arrow keys)");
  box.setAttribute("aria-describedby", "token-info");
  const spans = tokens.map((token) => {
    const span = document.createElement("span");
    span.className = "token";
    span.textContent = token.token;
    span.style.setProperty("--hue", Math.round(Math.exp(token.logprob) * 120));
    span.dataset.probability = percent(token.logprob);
    return span;
  });
  let at = -1;
  const choose = (next) => {
    spans[at]?.classList.remove("chosen");
    at = next;
    spans[at]?.classList.add("chosen");
    if (spans[at]) show(spans[at], tokens[at]);
    else hide();
  };
  const pointed = (event) => {
    const found = spans.indexOf(event.target);
    if (found >= 0) choose(found);
  };
  box.addEventListener("pointerover", pointed);
  box.addEventListener("click", pointed);
  box.addEventListener("pointerleave", () => choose(-1));
  box.addEventListener("blur", () => choose(-1));
  box.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    choose(Math.max(0, Math.min(spans.length - 1, at + step)));
  });
  box.append(...spans);
  target.replaceChildren(box);
}

window.addEventListener("scroll", hide, true);
