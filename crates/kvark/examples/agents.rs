//! Five uses of one pool of cells on a real model: plain decode, a batch of streams, a fork, a request that joins a running
//! one, and the removal of tokens.
//!
//! ```sh
//! cargo run --release -p kvark --example agents -- path/to/model.gguf
//! ```
#![allow(clippy::print_stdout, reason = "an example writes to its terminal")]

use kvark::cache::{CacheConfig, CacheSession, Cells, make_seq_session};
use kvark::inference::{ModuleOptions, Value};
use kvark::text::EncodeOptions;
use kvark::{Cpu, Model, Module};

type Error = Box<dyn std::error::Error>;

/// Tokens of one step: each with its position and its sequence.
#[derive(Default)]
struct Batch {
    tokens: Vec<i32>,
    positions: Vec<i32>,
    sequences: Vec<u32>,
}

impl Batch {
    fn add(&mut self, token: u32, position: u32, sequence: u32) {
        self.tokens.push(token as i32);
        self.positions.push(position as i32);
        self.sequences.push(sequence);
    }

    fn add_text(&mut self, tokens: &[u32], start: u32, sequence: u32) {
        tokens
            .iter()
            .zip(start..)
            .for_each(|(token, position)| self.add(*token, position, sequence));
    }
}

/// The model and its cache. The graph does not contain the sequences of tokens: `begin_step` declares them to the cache.
struct Agent {
    module: Module,
    session: CacheSession<Cells>,
}

impl Agent {
    /// Runs one forward and returns the most likely next token after each token of the batch.
    fn step(&mut self, batch: Batch) -> Result<Vec<u32>, Error> {
        let n = batch.tokens.len();
        self.session.begin_step(&batch.sequences)?;
        let rows = Value::i32([n], (0..n as i32).collect());
        let inputs = [
            Value::i32([n], batch.tokens),
            Value::i32([n], batch.positions),
            rows,
        ];
        let outputs = self.module.execute("forward", &inputs)?;
        let logits = outputs[0].as_f32().ok_or("logits are f32")?;
        let best = |row: &[f32]| {
            (0..)
                .zip(row)
                .fold(
                    (0, f32::MIN),
                    |a, (i, x)| if *x > a.1 { (i, *x) } else { a },
                )
                .0
        };
        Ok(logits.chunks(logits.len() / n).map(best).collect())
    }

    /// Continues several sequences by `n` tokens, one forward per token for all, and returns the tokens of each.
    fn write(&mut self, mut next: Vec<(u32, u32)>, n: usize) -> Result<Vec<Vec<u32>>, Error> {
        let mut written = vec![vec![]; next.len()];
        for _ in 0..n {
            let mut batch = Batch::default();
            for ((sequence, token), written) in next.iter().zip(&mut written) {
                written.push(*token);
                batch.add(
                    *token,
                    self.session.seq_next(*sequence)?.unwrap_or(0),
                    *sequence,
                );
            }
            let tokens = self.step(batch)?;
            next.iter_mut()
                .zip(tokens)
                .for_each(|((_, next), token)| *next = token);
        }
        Ok(written)
    }
}

fn main() -> Result<(), Error> {
    let path = std::env::args()
        .nth(1)
        .ok_or("give the path of a GGUF model")?;
    let model = Model::open(path.as_ref(), None)?;
    let cpu = Cpu::new()?;
    let config = CacheConfig::new(4096, model.facts().caches.clone());
    let (session, backend) = make_seq_session("cpu", &config)?;
    let options = ModuleOptions {
        backend,
        ..Default::default()
    };
    let mut agent = Agent {
        module: Module::from_artifact(model.artifact(), &cpu, &options)?,
        session,
    };
    let tokenizer = model.tokenizer()?;
    let encode = |text: &str| {
        tokenizer.encode(
            text,
            EncodeOptions {
                bos: tokenizer.adds_bos(),
                ..Default::default()
            },
        )
    };
    let show =
        |what: &str, tokens: &[u32]| println!("  {what}: {:?}", tokenizer.decode(tokens, false));

    println!("1. Plain decode: one sequence, consecutive cells.");
    let mut prompt = Batch::default();
    prompt.add_text(&encode("The capital of France is"), 0, 0);
    let next = *agent.step(prompt)?.last().ok_or("a prompt")?;
    show("wrote", &agent.write(vec![(0, next)], 8)?[0]);

    println!("2. Three streams in one forward.");
    let mut batch = Batch::default();
    let mut last = vec![];
    for (sequence, text) in (1..).zip(["One, two, three,", "Roses are red,", "def main():"]) {
        batch.add_text(&encode(text), 0, sequence);
        last.push((sequence, batch.tokens.len() - 1));
    }
    let tokens = agent.step(batch)?;
    let next = last
        .iter()
        .map(|(sequence, row)| (*sequence, tokens[*row]))
        .collect();
    for (i, written) in agent.write(next, 8)?.iter().enumerate() {
        show(&format!("stream {}", i + 1), written);
    }

    println!("3. A fork: two continuations share the cells of one prefix; one of them is kept.");
    let cells = agent.session.len()?;
    agent.session.seq_cp(0, 10, ..)?;
    agent.session.seq_cp(0, 11, ..)?;
    println!(
        "  cells before and after the fork: {cells}, {}",
        agent.session.len()?
    );
    let ideas: Vec<(u32, u32)> = [(10, " It"), (11, " However")]
        .map(|(s, text)| (s, encode(text)[0]))
        .to_vec();
    for (idea, written) in agent.write(ideas, 8)?.iter().enumerate() {
        show(&format!("idea {idea}"), written);
    }
    agent.session.seq_keep(11)?;
    println!("  cells after keeping one: {}", agent.session.len()?);

    println!(
        "4. A request joins while another is being answered: prefill and decode in one forward."
    );
    let mut batch = Batch::default();
    batch.add(
        encode(" and")[0],
        agent.session.seq_next(11)?.unwrap_or(0),
        11,
    );
    batch.add_text(&encode("Water boils at"), 0, 3);
    let tokens = agent.step(batch)?;
    let next = vec![(11, tokens[0]), (3, tokens[tokens.len() - 1])];
    for (what, written) in ["ongoing", "joined"].iter().zip(agent.write(next, 8)?) {
        show(what, &written);
    }

    println!(
        "5. Removal: the first tokens of one sequence, the last ones of another, then a whole sequence."
    );
    let before = agent.session.len()?;
    agent.session.seq_rm(11, ..4)?;
    agent.session.seq_rm(3, 4..)?;
    println!("  cells: {before}, then {}", agent.session.len()?);
    agent.session.seq_rm(11, ..)?;
    agent.session.compact()?;
    let next = *encode(" exactly").first().ok_or("a token")?;
    show("regenerated", &agent.write(vec![(3, next)], 8)?[0]);
    Ok(())
}
