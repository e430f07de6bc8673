//! `Branches`: sequences that fork, rewind and step together in one pool of cells.

use crate::error::{Error, Result};
use crate::interrupt::interruptible;
use crate::loaded::{Loaded, Prompt, lock};
use crate::options::GenerationOptions;
use crate::result::GenerationResult;
use crate::speculation::Speculation;
use kvark::generate::{BatchToken, PromptPrefix, SeqId};
use kvark::{BatchRunner, RunnerOptions};
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::{Arc, Mutex};

/// A pool of cells and the sequences in it.
struct Pool {
    runner: BatchRunner,
    /// The sequences that branches hold, each with the number of its branch: numbers of sequences are used again.
    live: Vec<(SeqId, u64)>,
    next_branch: u64,
    /// The most branches of a step.
    sequences: usize,
    speculation: Speculation,
}

/// Sequences of one model that share cells.
#[pyclass(frozen, module = "kvark")]
pub struct Branches {
    model: Arc<Loaded>,
    pool: Arc<Mutex<Pool>>,
}

/// One sequence of a pool. Its cells are freed when it is dropped.
#[pyclass(frozen, module = "kvark")]
pub struct Branch {
    model: Arc<Loaded>,
    pool: Arc<Mutex<Pool>>,
    #[pyo3(get)]
    seq: SeqId,
    number: u64,
}

fn with<T: Send>(
    py: Python<'_>,
    pool: &Mutex<Pool>,
    work: impl FnOnce(&mut Pool) -> Result<T> + Send,
) -> Result<T> {
    py.detach(|| work(&mut lock(pool)))
}

impl Pool {
    /// A sequence that no branch holds, and the number of its branch.
    fn claim(&mut self) -> Result<(SeqId, u64)> {
        let taken: Vec<SeqId> = self.live.iter().map(|(seq, _)| *seq).collect();
        let seq = self.runner.free_sequence(&taken);
        let seq = seq.ok_or_else(|| Error::argument("there is no free sequence left"))?;
        self.next_branch += 1;
        self.live.push((seq, self.next_branch));
        Ok((seq, self.next_branch))
    }

    fn release(&mut self, branch: (SeqId, u64)) -> Result<()> {
        self.live.retain(|other| *other != branch);
        Ok(self.runner.remove(branch.0)?)
    }

    fn check(&self, branch: (SeqId, u64)) -> Result<()> {
        match self.live.contains(&branch) {
            true => Ok(()),
            false => Err(Error::argument("the branch was dropped")),
        }
    }
}

impl Branches {
    pub(crate) fn new(
        model: Arc<Loaded>,
        cells: Option<usize>,
        sequences: usize,
        prefix: Option<&PromptPrefix>,
    ) -> Result<Branches> {
        let options = RunnerOptions {
            pool_cells: cells,
            prefix: prefix.cloned(),
            ..model.runner.clone()
        };
        let (backend, sequences) = (&*model.backend, sequences.max(1));
        let runner = BatchRunner::with_trees(&model.model, backend, &options, sequences, 0, 0)?;
        let pool = Pool {
            runner,
            live: vec![],
            next_branch: 0,
            sequences: sequences.max(1),
            speculation: Speculation::default(),
        };
        Ok(Branches {
            model,
            pool: Arc::new(Mutex::new(pool)),
        })
    }

    /// The sequences of branches, which must be of this pool.
    fn sequences(&self, branches: &[PyRef<'_, Branch>]) -> Result<Vec<(SeqId, u64)>> {
        for branch in branches {
            if !Arc::ptr_eq(&branch.pool, &self.pool) {
                return Err(Error::argument("a branch belongs to another pool"));
            }
        }
        Ok(branches.iter().map(|branch| branch.id()).collect())
    }
}

#[pymethods]
impl Branches {
    /// A new branch, which begins with the frozen prefix of the pool and a prompt, if they are given.
    #[pyo3(signature = (prompt=None))]
    fn new_branch(&self, py: Python<'_>, prompt: Option<Prompt>) -> Result<Branch> {
        let tokens = match prompt {
            Some(prompt) => prompt.tokens(&self.model.model)?,
            None => vec![],
        };
        let (seq, number) = with(py, &self.pool, Pool::claim)?;
        let branch = Branch {
            model: self.model.clone(),
            pool: self.pool.clone(),
            seq,
            number,
        };
        with(py, &self.pool, |pool| {
            Ok(pool.runner.begin_with_prefix(seq)?)
        })?;
        if !tokens.is_empty() {
            branch.feed_tokens(py, &tokens)?;
        }
        Ok(branch)
    }

    /// Appends one token to each of several branches, in one forward.
    fn step(&self, py: Python<'_>, tokens: Vec<(PyRef<'_, Branch>, u32)>) -> Result<()> {
        let (branches, ids): (Vec<_>, Vec<u32>) = tokens.into_iter().unzip();
        let sequences = self.sequences(&branches)?;
        with(py, &self.pool, |pool| {
            sequences.iter().try_for_each(|seq| pool.check(*seq))?;
            let token = |((seq, _), id): (&(SeqId, u64), &u32)| BatchToken {
                seq: *seq,
                id: *id,
                logits: true,
            };
            let step: Vec<BatchToken> = sequences.iter().zip(&ids).map(token).collect();
            Ok(pool.runner.step(&step)?)
        })
    }

    /// Generates on several branches at once, with one forward for all, each after its last token. A branch's seed is the seed
    /// plus its index.
    ///
    /// Options: max_tokens, stop, ignore_eos, and those of the sampler, which `kvark run --help` lists; json_schema, regex, grammar
    /// (GBNF) or lark; logprobs; speculation.
    #[pyo3(signature = (branches, **options))]
    fn generate(
        &self,
        py: Python<'_>,
        branches: Vec<PyRef<'_, Branch>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> Result<Vec<GenerationResult>> {
        let options = GenerationOptions::read(&self.model.model, options)?;
        options.check_no_tools("branches")?;
        let sequences = self.sequences(&branches)?;
        let (model, pool) = (self.model.clone(), self.pool.clone());
        let outputs = interruptible(py, move |cancel| {
            let pool = &mut *lock(&pool);
            sequences.iter().try_for_each(|seq| pool.check(*seq))?;
            let mut lanes = vec![];
            for (index, (seq, _)) in (0..).zip(&sequences) {
                let seed = options.sampling.seed.wrapping_add(index);
                let runner = (&mut pool.runner, pool.sequences);
                let made = pool
                    .speculation
                    .sequence(&model, runner, *seq, vec![], &options, seed);
                lanes.push(made?);
            }
            let runner = &mut pool.runner;
            Ok(runner.generate(&model.model, lanes, |_, _| !cancel.is_set())?)
        })?;
        Ok(outputs.into_iter().map(GenerationResult::from).collect())
    }

    /// The map of cells: for each branch and cell the position of the token, or -1. Rows are in the order of `branches`.
    fn cell_map<'py>(
        &self,
        py: Python<'py>,
        branches: Vec<PyRef<'_, Branch>>,
    ) -> Result<Bound<'py, PyArray2<i32>>> {
        let sequences = self.sequences(&branches)?;
        let (map, width) = with(py, &self.pool, |pool| {
            let width = pool.runner.ref_counts()?.len();
            let mut map = vec![-1; width * sequences.len()];
            for (row, seq) in sequences.iter().enumerate() {
                pool.check(*seq)?;
                for run in pool.runner.runs(seq.0)? {
                    for i in 0..run.len as usize {
                        let cell = run.cell as usize + i;
                        map[row * width + cell] = (run.position as usize + i) as i32;
                    }
                }
            }
            Ok((map, width))
        })?;
        Ok(PyArray1::from_vec(py, map).reshape([sequences.len(), width])?)
    }

    /// The number of branches that hold each cell, up to the last cell in use.
    fn ref_counts<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyArray1<u16>>> {
        let counts = with(py, &self.pool, |pool| Ok(pool.runner.ref_counts()?))?;
        Ok(PyArray1::from_vec(py, counts))
    }

    /// Cells in use. A shared cell counts once.
    #[getter]
    fn cells_used(&self, py: Python<'_>) -> Result<usize> {
        with(py, &self.pool, |pool| Ok(pool.runner.cells_used()?))
    }

    /// Cells of the pool.
    #[getter]
    fn capacity(&self, py: Python<'_>) -> Result<usize> {
        with(py, &self.pool, |pool| Ok(pool.runner.capacity()?))
    }

    fn __repr__(&self, py: Python<'_>) -> Result<String> {
        with(py, &self.pool, |pool| {
            Ok(format!(
                "Branches({:?}, {} branches, {} of {} cells)",
                self.model.name(),
                pool.live.len(),
                pool.runner.cells_used()?,
                pool.runner.capacity()?
            ))
        })
    }
}

#[pymethods]
impl Branch {
    /// A branch with the same tokens. Nothing is copied.
    fn fork(&self, py: Python<'_>) -> Result<Branch> {
        let (seq, number) = with(py, &self.pool, |pool| {
            pool.check(self.id())?;
            let branch = pool.claim()?;
            let forked = pool.runner.fork(self.seq, branch.0);
            if forked.is_err() {
                pool.live.retain(|other| *other != branch);
            }
            forked?;
            Ok(branch)
        })?;
        Ok(Branch {
            model: self.model.clone(),
            pool: self.pool.clone(),
            seq,
            number,
        })
    }

    /// Appends tokens or text. Returns the number of tokens.
    fn feed(&self, py: Python<'_>, prompt: Prompt) -> Result<usize> {
        let tokens = match prompt {
            // A branch goes on: no BOS.
            Prompt::Text(text) => {
                let tokenizer = self.model.model.tokenizer()?;
                tokenizer.encode(&text, Default::default())
            }
            Prompt::Tokens(tokens) => tokens,
        };
        self.feed_tokens(py, &tokens)?;
        Ok(tokens.len())
    }

    /// The logits after the last token, as a copy.
    fn logits<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyArray1<f32>>> {
        let logits = with(py, &self.pool, |pool| {
            pool.check(self.id())?;
            if pool.runner.is_pending(self.seq) {
                pool.runner.sequence(self.seq).feed(&[], |_| true)?;
            }
            Ok(pool.runner.logits(self.seq).to_vec())
        })?;
        Ok(PyArray1::from_vec(py, logits))
    }

    /// Removes all tokens after the first `length`. Returns how many were computed again, which a model with recurrent layers may need.
    fn rewind(&self, py: Python<'_>, length: usize) -> Result<usize> {
        with(py, &self.pool, |pool| {
            pool.check(self.id())?;
            Ok(pool.runner.rewind(self.seq, length)?)
        })
    }

    /// Removes all other branches of the pool.
    fn keep(&self, py: Python<'_>) -> Result<()> {
        with(py, &self.pool, |pool| {
            pool.check(self.id())?;
            pool.runner.keep_only(self.seq)?;
            pool.live = vec![self.id()];
            Ok(())
        })
    }

    /// Frees its cells.
    fn drop(&self, py: Python<'_>) -> Result<()> {
        with(py, &self.pool, |pool| match pool.check(self.id()) {
            Ok(()) => pool.release(self.id()),
            Err(_) => Ok(()),
        })
    }

    /// The tokens.
    #[getter]
    fn tokens(&self, py: Python<'_>) -> Result<Vec<u32>> {
        with(py, &self.pool, |pool| {
            pool.check(self.id())?;
            Ok(pool.runner.tokens(self.seq).to_vec())
        })
    }

    /// The text of the tokens.
    #[getter]
    fn text(&self, py: Python<'_>) -> Result<String> {
        let tokens = self.tokens(py)?;
        Ok(self.model.model.tokenizer()?.decode(&tokens, false))
    }

    fn __len__(&self, py: Python<'_>) -> Result<usize> {
        Ok(self.tokens(py)?.len())
    }

    fn __repr__(&self, py: Python<'_>) -> Result<String> {
        with(py, &self.pool, |pool| {
            Ok(match pool.check(self.id()) {
                Ok(()) => {
                    let tokens = pool.runner.tokens(self.seq).len();
                    format!("Branch(seq={}, {tokens} tokens)", self.seq)
                }
                Err(_) => format!("Branch(seq={}, dropped)", self.seq),
            })
        })
    }
}

impl Branch {
    fn id(&self) -> (SeqId, u64) {
        (self.seq, self.number)
    }

    fn feed_tokens(&self, py: Python<'_>, tokens: &[u32]) -> Result<()> {
        let (pool, id, tokens) = (self.pool.clone(), self.id(), tokens.to_vec());
        interruptible(py, move |cancel| {
            let pool = &mut *lock(&pool);
            pool.check(id)?;
            let mut sequence = pool.runner.sequence(id.0);
            sequence.feed(&tokens, |_| !cancel.is_set())?;
            Ok(())
        })
    }
}

impl Drop for Branch {
    fn drop(&mut self) {
        let mut pool = lock(&self.pool);
        if pool.check(self.id()).is_ok() {
            _ = pool.release(self.id());
        }
    }
}
