//! `cargo xtask bench-torch`: compares kvark and PyTorch on exported models, interleaved.

use super::script;
use super::turns::Driver;
use crate::{model, shell};
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Compare the speed of kvark and PyTorch on exported models, interleaved on one machine
#[derive(Args)]
#[command(
    after_help = "Every model of a round is measured on every side, one right after the other. A side's time is the median of \
its runs in a round, and its figure the median of the rounds. Ratios are of kvark's time to the other's: below 1 kvark is \
faster. kvark reads the very file that PyTorch exported, and its outputs are compared with PyTorch's first.

Examples:
  cargo xtask bench-torch
  cargo xtask bench-torch -t 1 --rounds 3 --only transformer
  cargo xtask bench-torch --rounds 9 -t 2,1 --markdown docs/benchmarks/torch.md"
)]
pub(crate) struct BenchTorch {
    /// Number of measurements per model and side
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Numbers of threads
    #[arg(
        short,
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "2,1"
    )]
    threads: Vec<usize>,
    /// Seconds per side and round
    #[arg(long, value_name = "S", default_value_t = 0.3)]
    seconds: f64,
    /// Only cases whose name contains this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Skip torch.compile, which takes a minute per model to compile
    #[arg(long)]
    no_compile: bool,
    /// kvark binary to measure instead of the release build
    #[arg(long, value_name = "PATH")]
    kvark: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Also write the results as a Markdown document
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// The seed's tables: MLPs as rows × width, transformer blocks as batch × tokens × width; each with the ratio to eager
/// PyTorch that is aimed at.
const CASES: [(&str, f64); 9] = [
    ("mlp-1x512", 0.6),
    ("mlp-32x512", 0.9),
    ("mlp-128x512", 0.9),
    ("mlp-1x2048", 0.9),
    ("mlp-32x2048", 0.9),
    ("transformer-1x16x64", 0.15),
    ("transformer-4x16x64", 0.3),
    ("transformer-4x64x128", 0.5),
    ("transformer-4x128x256", 0.6),
];

/// A measured side.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Eager,
    Sdpa,
    Compile,
    Unfused,
    Fused,
}

impl Side {
    const ALL: [Side; 5] = [
        Side::Eager,
        Side::Sdpa,
        Side::Compile,
        Side::Unfused,
        Side::Fused,
    ];

    fn name(self) -> &'static str {
        match self {
            Side::Eager => "eager",
            Side::Sdpa => "sdpa",
            Side::Compile => "compile",
            Side::Unfused => "kvark unfused",
            Side::Fused => "kvark fused",
        }
    }

    /// Whether the side applies to a case: SDPA needs attention.
    fn takes(self, case: &str) -> bool {
        self != Side::Sdpa || case.starts_with("transformer")
    }
}

/// Microseconds of every side, round by round.
struct Row {
    case: &'static str,
    target: f64,
    threads: usize,
    times: [Vec<f64>; Side::ALL.len()],
    difference: f64,
}

impl Row {
    fn median(&self, side: Side) -> Option<f64> {
        let mut times = self.times[side as usize].clone();
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied()
    }

    fn ratio(&self, to: Side) -> Option<f64> {
        Some(self.median(Side::Fused)? / self.median(to)?)
    }
}

struct Report {
    rows: Vec<Row>,
    rounds: u32,
    machine: String,
    isa: String,
    versions: String,
}

impl BenchTorch {
    pub(crate) fn execute(self) -> Result<()> {
        let kvark = match &self.kvark {
            Some(path) => path
                .canonicalize()
                .with_context(|| path.display().to_string())?,
            None => model::kvark()?,
        };
        let report = self.measure(&kvark)?;
        if let Some(file) = &self.markdown {
            std::fs::write(file, report.markdown()).with_context(|| file.display().to_string())?;
        }
        if self.json {
            println!("{}", report.json());
        } else {
            print!("{}", report.markdown());
        }
        Ok(())
    }

    fn measure(&self, kvark: &Path) -> Result<Report> {
        let folder = shell::target().join("bench-torch");
        let cases: Vec<_> = CASES
            .into_iter()
            .filter(|(case, _)| case.contains(&self.only))
            .collect();
        let mut rows = Vec::new();
        let mut versions = Value::Null;
        for &threads in &self.threads {
            let mut torch = Torch::start(threads)?;
            let names: Vec<&str> = cases.iter().map(|(case, _)| *case).collect();
            versions = torch.ask(&json!({ "do": "export", "folder": folder, "cases": names }))?;
            let first = rows.len();
            for &(case, target) in &cases {
                let kvark = Kvark {
                    program: kvark,
                    folder: &folder,
                    case,
                    threads,
                };
                let difference = kvark.difference(&mut torch)?;
                if difference > 1e-4 {
                    bail!("{case}: kvark's output is {difference} from PyTorch's");
                }
                rows.push(Row {
                    case,
                    target,
                    threads,
                    times: Default::default(),
                    difference,
                });
            }
            for round in 0..self.rounds {
                for row in &mut rows[first..] {
                    let kvark = Kvark {
                        program: kvark,
                        folder: &folder,
                        case: row.case,
                        threads,
                    };
                    for side in Side::ALL {
                        if !side.takes(row.case) || (side == Side::Compile && self.no_compile) {
                            continue;
                        }
                        let time = match side {
                            Side::Unfused => kvark.time("-fuse_chain,-fuse_dag", self.seconds)?,
                            Side::Fused => kvark.time("all", self.seconds)?,
                            _ => torch.time(row.case, side, self.seconds)?,
                        };
                        row.times[side as usize].push(time);
                    }
                }
                eprintln!("{threads} threads: round {} of {}", round + 1, self.rounds);
            }
        }
        Ok(Report {
            rows,
            rounds: self.rounds,
            machine: machine(),
            isa: isa(kvark)?,
            versions: format!(
                "PyTorch {} on Python {} from PyPI, kvark {}",
                versions["torch"].as_str().unwrap_or("?"),
                versions["python"].as_str().unwrap_or("?"),
                env!("CARGO_PKG_VERSION"),
            ),
        })
    }
}

/// The PyTorch process.
struct Torch(Driver);

impl Torch {
    fn start(threads: usize) -> Result<Torch> {
        let mut command = script::TORCH_BENCH.command()?;
        command
            .arg(threads.to_string())
            .env("OMP_NUM_THREADS", threads.to_string());
        Ok(Torch(Driver::start("PyTorch", &mut command)?))
    }

    fn ask(&mut self, question: &Value) -> Result<Value> {
        self.0.ask(question)
    }

    fn time(&mut self, case: &str, side: Side, seconds: f64) -> Result<f64> {
        let question =
            json!({ "do": "time", "case": case, "side": side.name(), "seconds": seconds });
        let answer = self.ask(&question)?;
        let median = answer["median"].as_f64();
        median.ok_or_else(|| anyhow!("the PyTorch driver answered {answer}"))
    }
}

/// kvark on one exported model.
struct Kvark<'a> {
    program: &'a Path,
    folder: &'a Path,
    case: &'a str,
    threads: usize,
}

impl Kvark<'_> {
    fn run(&self, more: &[&str]) -> Result<Value> {
        let input = self.folder.join(format!("{}.x.npy", self.case));
        let mut command = shell::command(self.program);
        command
            .arg("exec")
            .arg(self.folder.join(format!("{}.pt2", self.case)))
            .arg(format!("--input=x={}", input.display()))
            .arg(format!("--threads={}", self.threads))
            .arg("--json")
            .args(more);
        let printed = shell::output(&mut command)?;
        serde_json::from_str(&printed).context("the output of kvark exec is not JSON")
    }

    /// The median of the runs of about so many seconds.
    fn time(&self, passes: &str, seconds: f64) -> Result<f64> {
        let passes = format!("--passes={passes}");
        let median = |answer: Value| answer["microseconds"]["median"].as_f64();
        let probe = median(self.run(&[&passes, "--repeat=20"])?).context("no time")?;
        let repeat = ((seconds * 1e6 / probe) as usize).clamp(5, 100_000);
        let repeat = format!("--repeat={repeat}");
        median(self.run(&[&passes, &repeat])?).context("no time")
    }

    /// The largest difference of the output from PyTorch's.
    fn difference(&self, torch: &mut Torch) -> Result<f64> {
        let to = self.folder.join(format!("{}.out", self.case));
        let answer = self.run(&[&format!("--output={}", to.display())])?;
        let name = answer["outputs"][0]["name"].as_str().context("no output")?;
        let file = to.join(format!("{name}.npy"));
        let check = torch.ask(&json!({ "do": "check", "case": self.case, "file": file }))?;
        let difference = check["difference"].as_f64();
        difference.ok_or_else(|| anyhow!("{}: {check}", self.case))
    }
}

fn isa(kvark: &Path) -> Result<String> {
    let printed = shell::output(shell::command(kvark).args(["--version"]))?;
    let forced = std::env::var("KVARK_ISA").unwrap_or_else(|_| "the CPU's best tier".to_owned());
    Ok(format!("{} on {forced}", printed.trim()))
}

fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let model = field("model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{model}, {cores} cores")
}

impl Report {
    fn markdown(&self) -> String {
        let mut text = format!(
            "# kvark and PyTorch on exported models

Made by `cargo xtask bench-torch --rounds {} --markdown docs/benchmarks/torch.md`; every side of a row is measured in
turn, and a figure is the median of the rounds' medians, in microseconds.

- Machine: {}; {}
- {}
- `mlp` (rows × width): three linear layers with ReLU between. `transformer` (batch × tokens × width): one pre-norm block,
  4 heads, attention by `F.softmax` (`sdpa`: by `scaled_dot_product_attention`), feed-forward of 4 × the width with GELU (erf).
- kvark runs the file that `torch.export` wrote; *unfused* leaves out the passes `fuse_chain` and `fuse_dag`. Its outputs
  differ from PyTorch's by {:.1e} at most.
- Ratios are kvark fused to the other: below 1 kvark is faster.
",
            self.rounds,
            self.machine,
            self.isa,
            self.versions,
            self.rows.iter().map(|r| r.difference).fold(0.0, f64::max),
        );
        let mut threads = 0;
        for row in &self.rows {
            if row.threads != threads {
                threads = row.threads;
                let plural = if threads == 1 { "" } else { "s" };
                let _ = write!(
                    text,
                    "\n## {threads} thread{plural}\n\n| case | {} | to eager | wanted | to sdpa | to compile |\n|---|{}\n",
                    Side::ALL.map(Side::name).join(" | "),
                    "---:|".repeat(Side::ALL.len() + 4),
                );
            }
            let time = |side| {
                row.median(side)
                    .map_or("–".to_owned(), |t| format!("{t:.1}"))
            };
            let ratio = |side| {
                row.ratio(side)
                    .map_or("–".to_owned(), |r| format!("{r:.2}"))
            };
            let met = row.ratio(Side::Eager).is_some_and(|r| r <= row.target);
            let _ = writeln!(
                text,
                "| {} | {} | {} | ≤ {:.2}{} | {} | {} |",
                row.case,
                Side::ALL.map(time).join(" | "),
                ratio(Side::Eager),
                row.target,
                if met { "" } else { " (missed)" },
                ratio(Side::Sdpa),
                ratio(Side::Compile),
            );
        }
        text
    }

    fn json(&self) -> Value {
        let row = |row: &Row| {
            let times: serde_json::Map<String, Value> = Side::ALL
                .iter()
                .map(|side| (side.name().to_owned(), json!(row.median(*side))))
                .collect();
            json!({ "case": row.case, "threads": row.threads, "microseconds": times,
                    "ratio": row.ratio(Side::Eager), "wanted": row.target, "difference": row.difference })
        };
        let rows: Vec<Value> = self.rows.iter().map(row).collect();
        json!({ "rows": rows, "rounds": self.rounds, "machine": self.machine, "versions": self.versions })
    }
}
