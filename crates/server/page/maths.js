// TeX formulas as MathML: what language models write. A formula with anything else is left as it is.

const words = (text) => Object.fromEntries(text.trim().split(/\s+/).map((pair) => pair.split("=")));

const LETTERS = words(`
  alpha=α beta=β gamma=γ delta=δ epsilon=ϵ varepsilon=ε zeta=ζ eta=η theta=θ vartheta=ϑ iota=ι kappa=κ lambda=λ mu=μ nu=ν xi=ξ
  pi=π rho=ρ sigma=σ tau=τ upsilon=υ phi=ϕ varphi=φ chi=χ psi=ψ omega=ω Gamma=Γ Delta=Δ Theta=Θ Lambda=Λ Xi=Ξ Pi=Π Sigma=Σ
  Phi=Φ Psi=Ψ Omega=Ω ell=ℓ hbar=ℏ infty=∞ partial=∂ nabla=∇ emptyset=∅ varnothing=∅ Re=ℜ Im=ℑ aleph=ℵ ldots=… dots=… cdots=⋯
  vdots=⋮ ddots=⋱ angle=∠ top=⊤ bot=⊥ prime=′ degree=°`);
const OPERATORS = words(`
  times=× cdot=⋅ div=÷ pm=± mp=∓ ast=∗ star=⋆ circ=∘ bullet=∙ oplus=⊕ otimes=⊗ le=≤ leq=≤ ge=≥ geq=≥ ne=≠ neq=≠ ll=≪ gg=≫
  approx=≈ sim=∼ simeq=≃ cong=≅ equiv=≡ propto=∝ to=→ rightarrow=→ leftarrow=← Rightarrow=⇒ Leftarrow=⇐ leftrightarrow=↔
  Leftrightarrow=⇔ iff=⟺ implies=⟹ mapsto=↦ longrightarrow=⟶ uparrow=↑ downarrow=↓ in=∈ notin=∉ ni=∋ subset=⊂ subseteq=⊆
  supset=⊃ supseteq=⊇ cup=∪ cap=∩ setminus=∖ forall=∀ exists=∃ nexists=∄ neg=¬ lnot=¬ land=∧ wedge=∧ lor=∨ vee=∨ mid=∣ nmid=∤
  parallel=∥ perp=⟂ therefore=∴ because=∵ vdash=⊢ models=⊨ langle=⟨ rangle=⟩ lfloor=⌊ rfloor=⌋ lceil=⌈ rceil=⌉ lvert=| rvert=|
  lVert=‖ rVert=‖ vert=| Vert=‖ colon=:`);
const LARGE = words("sum=∑ prod=∏ coprod=∐ bigcup=⋃ bigcap=⋂ bigoplus=⨁ bigotimes=⨂");
const INTEGRALS = words("int=∫ iint=∬ iiint=∭ oint=∮");
const FUNCTIONS = new Set(
  "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp det dim ker deg gcd arg hom Pr".split(" "),
);
const LIMITS = new Set("lim max min sup inf limsup liminf argmax argmin".split(" "));
const ACCENTS = words("hat=^ widehat=^ bar=¯ overline=¯ vec=→ dot=˙ ddot=¨ tilde=~ widetilde=~");
const SPACES = { ",": 0.17, ":": 0.22, ";": 0.28, " ": 0.25, "!": -0.17, quad: 1, qquad: 2 };
const ALPHABETS = { mathbb: "double-struck", mathcal: "script", mathscr: "script", mathfrak: "fraktur", mathbf: "bold", boldsymbol: "bold", bm: "bold" };
const FENCES = { matrix: ["", ""], pmatrix: ["(", ")"], bmatrix: ["[", "]"], Bmatrix: ["{", "}"], vmatrix: ["|", "|"], Vmatrix: ["‖", "‖"] };
const ALIGNED = new Set(["aligned", "align", "align*", "gathered", "gather", "gather*", "split", "equation", "equation*"]);

const escaped = (text) => text.replace(/[&<>]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[c]);
const mi = (text) => `<mi>${escaped(text)}</mi>`;
const mo = (text, more = "") => `<mo${more}>${escaped(text)}</mo>`;
const row = (parts) => (parts.length === 1 ? parts[0] : `<mrow>${parts.join("")}</mrow>`);

// Letters of another alphabet have code points of their own.
function inAlphabet(text, alphabet) {
  const bases = { "double-struck": [0x1d538, 0x1d552], script: [0x1d49c, 0x1d4b6], fraktur: [0x1d504, 0x1d51e], bold: [0x1d400, 0x1d41a] };
  const exceptions = {
    "double-struck": words("C=ℂ H=ℍ N=ℕ P=ℙ Q=ℚ R=ℝ Z=ℤ"),
    script: words("B=ℬ E=ℰ F=ℱ H=ℋ I=ℐ L=ℒ M=ℳ R=ℛ e=ℯ g=ℊ o=ℴ"),
    fraktur: words("C=ℭ H=ℌ I=ℑ R=ℜ Z=ℨ"),
    bold: {},
  };
  const [upper, lower] = bases[alphabet];
  return [...text]
    .map((c) => {
      if (exceptions[alphabet][c]) return exceptions[alphabet][c];
      if (/[A-Z]/.test(c)) return String.fromCodePoint(upper + c.charCodeAt(0) - 65);
      if (/[a-z]/.test(c)) return String.fromCodePoint(lower + c.charCodeAt(0) - 97);
      return c;
    })
    .join("");
}

class Unknown extends Error {}

class Parser {
  constructor(tex, display) {
    this.tokens = tex.match(/\\[a-zA-Z]+\*?|\\[^a-zA-Z]|\d+(?:\.\d+)?|\s+|[\s\S]/gu) ?? [];
    this.at = 0;
    this.display = display;
    this.depth = 0;
  }

  peek() {
    while (/^\s+$/.test(this.tokens[this.at] ?? "")) this.at++;
    return this.tokens[this.at];
  }

  next() {
    const token = this.peek();
    this.at++;
    return token;
  }

  expect(wanted) {
    if (this.next() !== wanted) throw new Unknown(`${wanted} is missing`);
  }

  // Everything up to one of these tokens, which stays.
  rows(ends) {
    if (++this.depth > 60) throw new Unknown("too deep");
    const parts = [];
    for (let token = this.peek(); token !== undefined && !ends.includes(token); token = this.peek()) parts.push(this.scripted());
    this.depth--;
    return parts;
  }

  // An atom with what stands below and above it.
  scripted() {
    const start = this.peek();
    const base = ["^", "_"].includes(start) ? "<mrow></mrow>" : this.atom();
    const name = start.slice(1);
    const stacked = (this.display && (LARGE[name] || LIMITS.has(name))) || ["\\underbrace", "\\overbrace"].includes(start);
    let below;
    let above;
    for (let token = this.peek(); ["^", "_", "'"].includes(token); token = this.peek()) {
      if (token === "'") {
        let primes = "";
        while (this.peek() === "'") primes += this.next() && "′";
        above = (above ?? "") + mo(primes);
      } else {
        this.next();
        const script = this.argument();
        if (token === "_") below = script;
        else above = above ? row([above, script]) : script;
      }
    }
    if (below && above) return `<m${stacked ? "underover" : "subsup"}>${base}${below}${above}</m${stacked ? "underover" : "subsup"}>`;
    if (below) return `<m${stacked ? "under" : "sub"}>${base}${below}</m${stacked ? "under" : "sub"}>`;
    if (above) return `<m${stacked ? "over" : "sup"}>${base}${above}</m${stacked ? "over" : "sup"}>`;
    return base;
  }

  // A group in braces, or one atom.
  argument() {
    const token = this.peek();
    if (token !== "{") {
      // Without braces a digit is an argument of its own.
      if (/^\d./.test(token ?? "")) this.tokens.splice(this.at, 1, token[0], token.slice(1));
      return this.atom();
    }
    this.next();
    const parts = this.rows(["}"]);
    this.expect("}");
    return row(parts);
  }

  // The characters of a group in braces.
  text() {
    this.expect("{");
    let text = "";
    for (let open = 1; ; this.at++) {
      const token = this.tokens[this.at];
      if (token === undefined) throw new Unknown("} is missing");
      open += (token === "{") - (token === "}");
      if (!open) break;
      text += /^\\[^a-zA-Z]$/.test(token) ? token[1] : token;
    }
    this.at++;
    return text;
  }

  delimiter() {
    const token = this.next() ?? "";
    if (token === ".") return "";
    const name = token.slice(1);
    if (token[0] === "\\" && name.length > 1 && !OPERATORS[name]) throw new Unknown(token);
    return token[0] !== "\\" ? token : (OPERATORS[name] ?? (name === "|" ? "‖" : name));
  }

  atom() {
    const token = this.next();
    if (token === undefined) throw new Unknown("the formula ends");
    if (token === "{") {
      this.at--;
      return this.argument();
    }
    if (/^\d/.test(token)) return `<mn>${token}</mn>`;
    if (/^\p{L}$/u.test(token)) return mi(token);
    if (token[0] === "\\") return this.command(token.slice(1));
    if (["}", "&", "#", "%", "$"].includes(token)) throw new Unknown(token);
    return mo({ "-": "−", "*": "∗" }[token] ?? token);
  }

  command(name) {
    if (LETTERS[name]) return mi(LETTERS[name]);
    if (OPERATORS[name]) return mo(OPERATORS[name]);
    if (LARGE[name]) return mo(LARGE[name], ` largeop="true" movablelimits="${!this.display}"`);
    if (INTEGRALS[name]) return mo(INTEGRALS[name], ' largeop="true"');
    if (FUNCTIONS.has(name) || LIMITS.has(name)) return `<mi>${name}</mi>`;
    if (name in SPACES) return `<mspace width="${SPACES[name]}em"></mspace>`;
    if (ALPHABETS[name]) return `<mi mathvariant="normal">${escaped(inAlphabet(this.peek() === "{" ? this.text() : this.next(), ALPHABETS[name]))}</mi>`;
    if (ACCENTS[name]) return `<mover accent="true">${this.argument()}${mo(ACCENTS[name])}</mover>`;
    if (name.length === 1 && "{}%$#&_|".includes(name)) return mo(name === "|" ? "‖" : name);
    switch (name) {
      case "frac":
      case "dfrac":
      case "tfrac":
        return `<mfrac>${this.argument()}${this.argument()}</mfrac>`;
      case "binom":
        return `<mrow>${mo("(")}<mfrac linethickness="0">${this.argument()}${this.argument()}</mfrac>${mo(")")}</mrow>`;
      case "sqrt": {
        if (this.peek() !== "[") return `<msqrt>${this.argument()}</msqrt>`;
        this.next();
        const index = row(this.rows(["]"]));
        this.expect("]");
        return `<mroot>${this.argument()}${index}</mroot>`;
      }
      case "text":
      case "textbf":
      case "textit":
      case "mbox":
        return `<mtext>${escaped(this.text()).replace(/^ | $/g, "\u00a0")}</mtext>`;
      case "mathrm":
      case "operatorname":
      case "operatorname*":
        return `<mi mathvariant="normal">${escaped(this.text().trim())}</mi>`;
      case "underline":
        return `<munder>${this.argument()}${mo("_")}</munder>`;
      case "boxed":
        return `<mrow class="boxed">${this.argument()}</mrow>`;
      case "left": {
        const open = this.delimiter();
        const parts = this.rows(["\\right"]);
        this.expect("\\right");
        const close = this.delimiter();
        return `<mrow>${mo(open, ' stretchy="true"')}${parts.join("")}${mo(close, ' stretchy="true"')}</mrow>`;
      }
      case "big":
      case "Big":
      case "bigl":
      case "bigr":
      case "Bigl":
      case "Bigr":
        return mo(this.delimiter());
      case "displaystyle":
      case "limits":
      case "nonumber":
        return "<mrow></mrow>";
      case "begin":
        return this.environment();
      default:
        throw new Unknown(name);
    }
  }

  environment() {
    const name = this.text();
    const end = ["&", "\\\\", "\\end"];
    const lines = [[]];
    for (;;) {
      lines.at(-1).push(row(this.rows(end)));
      const token = this.next();
      if (token === "\\\\") lines.push([]);
      else if (token === "\\end") break;
      else if (token !== "&") throw new Unknown("\\end is missing");
    }
    if (this.text() !== name) throw new Unknown(`\\end{${name}} is missing`);
    // A break after the last line makes no line.
    const full = lines.filter((line, i) => i + 1 < lines.length || line.some((cell) => cell !== "<mrow></mrow>"));
    const side = (i) => (ALIGNED.has(name) ? ` class="${i % 2 ? "after" : "before"}"` : "");
    const rows = full.map((line) => `<mtr>${line.map((cell, i) => `<mtd${side(i)}>${cell}</mtd>`).join("")}</mtr>`);
    const table = `<mtable>${rows.join("")}</mtable>`;
    if (ALIGNED.has(name)) return table;
    if (name === "cases") return `<mrow>${mo("{", ' stretchy="true"')}${table}</mrow>`;
    const fences = FENCES[name];
    if (!fences) throw new Unknown(name);
    const [open, close] = fences.map((fence) => fence && mo(fence, ' stretchy="true"'));
    return `<mrow>${open}${table}${close}</mrow>`;
  }
}

// The MathML of a formula; nothing if it has something that is not known.
export function mathML(tex, display) {
  try {
    const parser = new Parser(tex, display);
    const parts = parser.rows([]);
    if (!parts.length) return undefined;
    return `<math${display ? ' display="block"' : ""}>${row(parts)}</math>`;
  } catch (error) {
    if (error instanceof Unknown) return undefined;
    throw error;
  }
}
