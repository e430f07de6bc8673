// How full the context of the model is with the conversation that is shown.

const line = document.getElementById("fill");
const meter = document.getElementById("fill-meter");
const text = document.getElementById("fill-text");

let context = 0;
let used = 0;

function draw() {
  line.hidden = !context || !used;
  meter.max = context;
  meter.high = context * 0.9;
  meter.optimum = 0;
  meter.value = used;
  text.textContent = `${used} of ${context} tokens of the context`;
}

export function setContext(tokens) {
  context = tokens;
  draw();
}

export function show(tokens) {
  used = tokens;
  draw();
}
