//! Texts of every kind, the same at every run.

/// A generator of numbers (xorshift).
pub(crate) struct Noise(pub(crate) u64);

impl Noise {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

const WRITTEN: &[&str] = &[
    "",
    " ",
    "The capital of France is Paris, isn't it? We'LL see; I've 12,345.67 reasons (and you'd agree).",
    "fn main() {\n\tlet x: Vec<u8> = vec![0; 1024];\r\n    if x.len() >= 10 && !x.is_empty() { println!(\"{x:?}\"); }\n}\n",
    "def f(a, *b, **c):\n    return {k: v for k, v in c.items()}  # 100%\n\n\n\nclass A:\n        pass\n",
    "Größe, façade, naïve, Ærøskøbing, Łódź, İstanbul, ΣΊΣΥΦΟΣ, Москва, ЁЖ",
    "日本語のテキスト。中文文本，标点！ 한국어 텍스트 ㄱㄴㄷ Tiếng Việt ภาษาไทย हिन्दी العربية עברית",
    "👩‍👩‍👧‍👦 👍🏽 🇫🇷🇩🇪 ❤️‍🔥 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ☺️ 1️⃣",
    "½ ⅷ Ⅻ ٣٤٥ ৪ 〇 ² ₃ 𝟘𝟙 1234567890 12 345 6789 3.14e-10",
    "a\u{300}\u{301}e\u{323}\u{302} \u{1E9B}\u{323} \u{302E}\u{1D165}x \u{AC00}\u{11A8} \u{FB1D} \u{212B} \u{2126}",
    "\u{0}\u{1}\u{7F}\u{85}\u{A0}\u{AD}\u{200B}\u{200D}\u{2028}\u{FEFF}\u{FFFD}\u{E000}\u{F8FF}\u{10FFFF}",
    "▁a ▁▁ _▁_ ▁",
    "'s 'S 't 'RE 're 'vE 'm 'LL 'll 'd 'ſ ''s 's's x'sx",
    "<|im_start|>user\nHi<|im_end|>\n<s></s><unk>[CLS][SEP][UNK][MASK]<|endoftext|><|end|><0x0A><|eot_id|>",
    "\n\n\n\n a\n\n b\n\n\n\r\n\r\n\t\t \n  \n",
    "`~!@#$%^&*()-_=+[]{}\\|;:'\",.<>/?",
];

const PARTS: &[&str] = &[
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\r\n",
    "\u{A0}",
    "\u{2003}",
    "\u{3000}",
    "\u{85}",
    "a",
    "b",
    "the",
    "The",
    "ing",
    "Z",
    "é",
    "É",
    "e\u{301}",
    "ß",
    "İ",
    "ı",
    "ſ",
    "Σ",
    "ς",
    "Ж",
    "我",
    "的",
    "々",
    "ア",
    "が",
    "한",
    "ㄱ",
    "\u{1100}\u{1161}",
    "ا",
    "ש",
    "ก",
    "า",
    "ि",
    "क",
    "𝔸",
    "𐐀",
    "ǅ",
    "ʰ",
    "0",
    "1",
    "9",
    "12",
    "345",
    "٣",
    "Ⅷ",
    "½",
    "²",
    "𝟘",
    "'",
    "'s",
    "'ll",
    "’",
    "\"",
    ".",
    ",",
    "...",
    "!",
    "?",
    "(",
    ")",
    "`",
    "~",
    "^",
    "$",
    "+",
    "<",
    "=",
    ">",
    "|",
    "#",
    "_",
    "-",
    "—",
    "¿",
    "「",
    "。",
    "！",
    "€",
    "№",
    "©",
    "→",
    "😀",
    "👍🏽",
    "\u{200D}",
    "\u{FE0F}",
    "🇫",
    "\u{300}",
    "\u{302E}",
    "\u{1D165}",
    "\u{20DD}",
    "\u{200B}",
    "\u{AD}",
    "\u{0}",
    "\u{7F}",
    "\u{E000}",
    "\u{FFFD}",
    "\u{FFFF}",
    "\u{378}",
    "\u{E0001}",
    "▁",
    "▁▁",
    "<s>",
    "</s>",
    "<unk>",
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|end|>",
    "[CLS]",
    "[SEP]",
    "[UNK]",
    "<0x0A>",
    "<",
    "s>",
];

/// Written texts, random ones of parts of words and of any characters, and long runs.
pub(crate) fn texts(count: usize) -> Vec<String> {
    let mut noise = Noise(0x9E37_79B9_7F4A_7C15);
    let mut texts: Vec<String> = WRITTEN.iter().map(|text| (*text).to_owned()).collect();
    texts.push(WRITTEN.concat());
    for i in 0..count {
        let len = 1 + noise.below(24);
        let part = |noise: &mut Noise| match i % 4 {
            // Any character of the first planes, or of all of them.
            0 => any_char(noise, 0x3000).to_string(),
            1 => any_char(noise, 0x11_0000).to_string(),
            _ => (*noise.pick(PARTS)).to_owned(),
        };
        texts.push((0..len).map(|_| part(&mut noise)).collect());
    }
    for unit in [
        "a", "ab", " ", "\n", "=", "的", "é", "1", " a", "\u{301}", "👍", "▁", "<s>",
    ] {
        texts.push(unit.repeat(2000 / unit.len()));
    }
    texts
}

fn any_char(noise: &mut Noise, end: usize) -> char {
    char::from_u32(noise.below(end) as u32).unwrap_or(' ')
}

/// Every character between letters, digits and spaces, in texts of some hundred bytes.
pub(crate) fn all_characters() -> Vec<String> {
    let all: Vec<char> = ('\0'..='\u{33FF}')
        .chain(('\u{3400}'..=char::MAX).step_by(61))
        .chain('\u{A000}'..='\u{ABFF}')
        .chain('\u{F900}'..='\u{1F9FF}')
        .chain('\u{E0000}'..='\u{E01FF}')
        .collect();
    let around = |c: &char| format!("{c}a{c} {c}1{c}\n");
    let chunks = all.chunks(40);
    chunks
        .map(|chunk| chunk.iter().map(around).collect())
        .collect()
}

/// Random bytes, most of them not UTF-8.
pub(crate) fn byte_texts(count: usize) -> Vec<Vec<u8>> {
    let mut noise = Noise(7);
    let leads = [
        0x41, 0xC1, 0xC3, 0xE0, 0xE2, 0xED, 0xEF, 0xF0, 0xF4, 0xF5, 0xFF, 0x80, 0x9F, 0xA0, 0xBF,
    ];
    let mut texts: Vec<Vec<u8>> = (0..count)
        .map(|_| {
            let len = 1 + noise.below(6);
            (0..len)
                .map(|_| match noise.below(3) {
                    0 => noise.below(256) as u8,
                    1 => 0x80 + noise.below(64) as u8,
                    _ => *noise.pick(&leads),
                })
                .collect()
        })
        .collect();
    for cut in WRITTEN {
        // Whole characters, and one that is cut.
        let bytes = cut.as_bytes();
        texts.extend((0..bytes.len().min(40)).map(|end| bytes[..end].to_vec()));
    }
    texts
}
