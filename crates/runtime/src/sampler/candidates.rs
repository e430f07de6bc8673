//! The tokens that the links of a chain choose from.

/// A token and its logit, which is not NaN.
pub(super) type Candidate = backend::ScoredToken;

/// The probability of each candidate relative to the first one, which is the most likely.
pub(super) fn relative(list: &[Candidate]) -> impl Iterator<Item = f64> {
    let top = list[0].logit;
    list.iter().map(move |c| f64::from(c.logit - top).exp())
}

/// The candidates of a sample: the logits of all tokens, until a link selects some of them into a list.
pub(super) struct Candidates<'a> {
    source: Source<'a>,
    /// The logits of all tokens after a link has changed one. Scratch otherwise.
    changed: Vec<f32>,
    /// The selected tokens.
    list: Vec<Candidate>,
    /// Whether the logits of `list` have changed since it was sorted.
    unsorted: bool,
}

/// Where the candidates are.
enum Source<'a> {
    Row(&'a [f32]),
    Changed,
    List,
}

/// The memory of candidates, kept between samples.
#[derive(Clone, Default)]
pub(super) struct Scratch {
    changed: Vec<f32>,
    list: Vec<Candidate>,
}

impl<'a> Candidates<'a> {
    /// All tokens of a row of logits.
    pub(super) fn of_logits(row: &'a [f32], scratch: &mut Scratch) -> Candidates<'a> {
        Candidates {
            source: Source::Row(row),
            changed: std::mem::take(&mut scratch.changed),
            list: std::mem::take(&mut scratch.list),
            unsorted: false,
        }
    }

    /// These tokens, the most likely first.
    pub(super) fn of_topk(best: &[Candidate], scratch: &mut Scratch) -> Candidates<'a> {
        let mut candidates = Candidates::of_logits(&[], scratch);
        candidates.source = Source::List;
        candidates.list.clear();
        candidates.list.extend_from_slice(best);
        candidates
    }

    /// Gives the memory back.
    pub(super) fn release(self, scratch: &mut Scratch) {
        scratch.changed = self.changed;
        scratch.list = self.list;
    }

    /// The logits of all tokens; `None` after a link has selected some.
    pub(super) fn row(&self) -> Option<&[f32]> {
        match self.source {
            Source::Row(row) => Some(row),
            Source::Changed => Some(&self.changed),
            Source::List => None,
        }
    }

    /// The logits of all tokens, to change them; `None` after a link has selected some.
    fn row_mut(&mut self) -> Option<&mut [f32]> {
        if let Source::Row(row) = self.source {
            self.changed.clear();
            self.changed.extend_from_slice(row);
            self.source = Source::Changed;
        }
        match self.source {
            Source::List => None,
            _ => Some(&mut self.changed),
        }
    }

    /// The logit of a token, to change it; `None` if the token is no candidate.
    pub(super) fn logit_mut(&mut self, id: u32) -> Option<&mut f32> {
        if self.row().is_some() {
            return self.row_mut()?.get_mut(id as usize);
        }
        self.unsorted = true;
        let candidate = self.list.iter_mut().find(|c| c.id == id)?;
        Some(&mut candidate.logit)
    }

    /// The logits of all candidates. One that is not a number is negative infinity.
    pub(super) fn logits(&self) -> impl Iterator<Item = f32> {
        let number = |logit: f32| match logit.is_nan() {
            true => f32::NEG_INFINITY,
            false => logit,
        };
        let row = self.row().unwrap_or(&[]).iter().copied();
        let list = match self.source {
            Source::List => &self.list[..],
            _ => &[],
        };
        row.map(number).chain(list.iter().map(|c| c.logit))
    }

    /// Divides all logits by a positive number.
    pub(super) fn divide(&mut self, by: f32) {
        match self.row_mut() {
            Some(row) => row.iter_mut().for_each(|logit| *logit /= by),
            None => self.list.iter_mut().for_each(|c| c.logit /= by),
        }
    }

    /// Keeps the `k` most likely tokens.
    pub(super) fn select(&mut self, k: usize) {
        match self.source {
            Source::List => self.list().truncate(k),
            Source::Row(row) => select(&mut self.list, row, k),
            Source::Changed => select(&mut self.list, &self.changed, k),
        }
        self.source = Source::List;
    }

    /// Keeps the tokens whose logits are at least `least`; the most likely one if there are none.
    pub(super) fn keep_at_least(&mut self, least: f64) {
        match self.source {
            Source::List => {
                let list = self.list();
                let kept = list.iter().take_while(|c| f64::from(c.logit) >= least);
                let kept = kept.count().max(1);
                list.truncate(kept);
            }
            Source::Row(row) => select_at_least(&mut self.list, row, least),
            Source::Changed => select_at_least(&mut self.list, &self.changed, least),
        }
        self.source = Source::List;
    }

    /// The candidates as a list, the most likely first.
    pub(super) fn list(&mut self) -> &mut Vec<Candidate> {
        if let Some(row) = self.row() {
            self.select(row.len());
        }
        if std::mem::take(&mut self.unsorted) {
            self.list.sort_unstable_by(Candidate::best_first);
        }
        &mut self.list
    }
}

fn select(list: &mut Vec<Candidate>, row: &[f32], k: usize) {
    list.clear();
    backend::topk(list, row, k);
}

fn select_at_least(list: &mut Vec<Candidate>, row: &[f32], least: f64) {
    list.clear();
    let kept = (0..)
        .zip(row)
        .filter(|(_, logit)| f64::from(**logit) >= least);
    list.extend(kept.map(|(id, logit)| Candidate { id, logit: *logit }));
    match list.is_empty() {
        true => select(list, row, 1),
        false => list.sort_unstable_by(Candidate::best_first),
    }
}
