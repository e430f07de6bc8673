//! Determines the attention window of every site by evaluating its mask.
//!
//! Exporters write equal masks in many ways, so masks are evaluated for steps at several positions of a sequence. Each
//! query must see all keys up to its own, or a fixed number of the last ones; anything else is an error.

use std::collections::{BTreeMap, HashMap};

use base::DType;
use graph::Value;

use super::attention_site::{AttentionSite, CacheSide, MaskSource, Present};
use super::cache_inputs::{CacheInputs, CacheLayout, port};
use super::mask::{MaskMatrix, WindowEvidence};
use super::subgraph_eval::{Substitute, evaluate_subgraph};
use crate::error::{ImportError, ImportErrorDetail};
use crate::genai::DecoderNames;
use crate::onnx::file::Onnx;
use crate::onnx::schema::DimProto;

/// A step for which masks are evaluated.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbeStep {
    pub(super) past: usize,
    pub(super) tokens: usize,
}

impl ProbeStep {
    pub(super) fn end(self) -> usize {
        self.past + self.tokens
    }
}

/// Result of a mask probe for one attention site.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::onnx) struct AttentionWindow {
    /// Number of keys a query sees, its own included; `None` for all.
    pub(in crate::onnx) window: Option<u32>,
    /// Factor on the scores in addition to the site's own scale.
    pub(in crate::onnx) factor: f32,
}

/// Evaluates the masks of a model's attention sites.
pub(super) struct MaskProbe<'a, 'b> {
    pub(super) file: &'a Onnx,
    pub(super) names: &'b DecoderNames,
    pub(super) caches: &'b [CacheInputs],
    pub(super) presents: &'b HashMap<&'a str, Present<'a>>,
    pub(super) sites: &'b [AttentionSite<'a>],
    /// Maximum number of positions.
    pub(super) max_positions: usize,
}

impl<'a> MaskProbe<'a, '_> {
    /// Determines the window of every site.
    pub(super) fn windows(&self) -> Result<Vec<AttentionWindow>, ImportError> {
        let mut found: Vec<WindowEvidence> = self
            .sites
            .iter()
            .map(|_| WindowEvidence::default())
            .collect();
        for step in self.steps() {
            let wanted = self.wanted();
            let mut substitutes = self.substitutes(step, 0.0)?;
            let mut runs = vec![self.probe(&substitutes, &wanted)?];
            if self.sites.iter().any(AttentionSite::is_decomposed) {
                for score in [1.0, 2.0] {
                    substitutes = self.substitutes(step, score)?;
                    runs.push(self.probe(&substitutes, &wanted)?);
                }
            }
            for (site, found) in self.sites.iter().zip(&mut found) {
                let result = self.look(site, step, &runs, found);
                result.map_err(|reason| self.wrong(site, reason))?;
            }
        }
        let views = self.views()?;
        let all = self.sites.iter().zip(found).zip(views);
        all.map(|((site, found), factor)| {
            let window = found.window().map_err(|reason| self.wrong(site, reason))?;
            let window = window.filter(|window| *window < self.max_positions);
            Ok(AttentionWindow {
                window: window.map(|window| window as u32),
                factor: factor * found.factor.unwrap_or(1.0),
            })
        })
        .collect()
    }

    pub(super) fn wrong(&self, site: &AttentionSite<'_>, reason: String) -> ImportError {
        let node = &self.file.nodes[site.node];
        let (node, op) = (node.label.clone(), node.op.clone());
        ImportErrorDetail::Op { node, op, reason }.into()
    }

    /// Probe steps at the beginning, in the middle and at the end of the possible positions.
    pub(super) fn steps(&self) -> impl Iterator<Item = ProbeStep> + use<> {
        let most = self.max_positions;
        let steps = [
            (0, 1),
            (0, 4),
            (3, 1),
            (2, 5),
            (most / 2, 1),
            (most.saturating_sub(3), 3),
            (most.saturating_sub(1), 1),
        ];
        let fits = move |step: &ProbeStep| step.end() <= most;
        steps
            .into_iter()
            .map(|(past, tokens)| ProbeStep { past, tokens })
            .filter(fits)
    }

    /// Tensors to evaluate: masks, scores and lengths.
    fn wanted(&self) -> Vec<&str> {
        let mut wanted: Vec<&str> = vec![];
        for site in self.sites {
            match site.mask {
                MaskSource::Operand { name, .. } => wanted.extend(name),
                MaskSource::Scores { to, .. } => wanted.push(to),
                MaskSource::Lengths {
                    last,
                    total,
                    positions,
                    ..
                } => wanted.extend([last, total].into_iter().chain(positions)),
            }
        }
        wanted.sort_unstable();
        wanted.dedup();
        wanted
    }

    pub(super) fn probe(
        &self,
        substitutes: &BTreeMap<String, Substitute>,
        wanted: &[&str],
    ) -> Result<BTreeMap<String, Value>, ImportError> {
        if wanted.is_empty() {
            return Ok(BTreeMap::new());
        }
        let values = evaluate_subgraph(self.file, substitutes, wanted)?;
        let names = wanted.iter().map(|name| (*name).to_owned());
        Ok(names.zip(values).collect())
    }

    /// Substitutes for the inputs of a step and for tensors that depend on the network's data.
    pub(super) fn substitutes(
        &self,
        step: ProbeStep,
        score: f32,
    ) -> Result<BTreeMap<String, Substitute>, ImportError> {
        let ProbeStep { past, tokens } = step;
        let names = self.names;
        let positions: Vec<i64> = (past as i64..).take(tokens).collect();
        let drivers = [
            (&names.input_ids, vec![1, tokens], vec![0; tokens]),
            (&names.position_ids, vec![1, tokens], positions),
            (
                &names.attention_mask,
                vec![1, step.end()],
                vec![1; step.end()],
            ),
            (&names.write_indices, vec![1], vec![past as i64]),
            (&names.nonpad_kv_seqlen, vec![1], vec![step.end() as i64]),
        ];
        let mut substitutes = BTreeMap::new();
        for (name, shape, elements) in drivers {
            let Some(port) = self.file.inputs.iter().find(|port| port.name == *name) else {
                continue;
            };
            let dtype = port.kind.map_or(DType::I64, |kind| kind.dtype());
            let value = match dtype {
                DType::I32 => Value::i32(shape, elements.iter().map(|n| *n as i32).collect()),
                DType::Bool => Value::bool(shape, elements.iter().map(|n| *n != 0).collect()),
                DType::F32 => Value::f32(shape, elements.iter().map(|n| *n as f32).collect()),
                _ => Value::i64(shape, elements),
            };
            substitutes.insert(name.clone(), Substitute::Value(value));
        }
        for (index, cache) in self.caches.iter().enumerate() {
            for (name, side) in [
                (&cache.key, CacheSide::Key),
                (&cache.value, CacheSide::Value),
            ] {
                let shape = self.cache_shape(index, side, past)?;
                substitutes.insert(name.clone(), Substitute::Shape(shape));
            }
        }
        for (name, present) in self.presents {
            let shape = self.cache_shape(present.cache, present.side(), step.end())?;
            substitutes.insert((*name).to_owned(), Substitute::Shape(shape));
        }
        for site in self.sites {
            if let MaskSource::Scores { from, .. } = site.mask {
                let keys = self.rows(site.cache, step.end());
                let shape = [1, 1, tokens, keys];
                let scores = Value::f32(shape, vec![score; tokens * keys]);
                substitutes.insert(from.to_owned(), Substitute::Value(scores));
            }
        }
        Ok(substitutes)
    }

    /// Number of rows of a cache that holds `length` tokens.
    pub(super) fn rows(&self, cache: usize, length: usize) -> usize {
        self.caches[cache].form.fixed_rows().unwrap_or(length)
    }

    pub(super) fn cache_shape(
        &self,
        cache: usize,
        side: CacheSide,
        length: usize,
    ) -> Result<Vec<usize>, ImportError> {
        let name = match side {
            CacheSide::Key => &self.caches[cache].key,
            CacheSide::Value => &self.caches[cache].value,
        };
        let dims = port(self.file, name)?.dims.as_deref().unwrap_or_default();
        let last = match dims.last() {
            Some(DimProto::Number(n)) => *n as usize,
            _ => 0,
        };
        Ok(match self.caches[cache].form {
            CacheLayout::Static { max_seq_len, .. } => vec![1, max_seq_len, last],
            CacheLayout::Past { heads, rows } => vec![1, heads, rows.unwrap_or(length), last],
        })
    }

    /// Adds the evidence of a site's mask for one step.
    fn look(
        &self,
        site: &AttentionSite<'_>,
        step: ProbeStep,
        runs: &[BTreeMap<String, Value>],
        found: &mut WindowEvidence,
    ) -> Result<(), String> {
        let keys = self.rows(site.cache, step.end());
        match site.mask {
            MaskSource::Lengths {
                last,
                total,
                positions,
                window,
            } => {
                let counted: Vec<i64> = (step.past as i64..).take(step.tokens).collect();
                if positions.is_some_and(|name| integers(&runs[0][name]) != Some(counted)) {
                    return Err("rotates by positions that are not those of the sequence".into());
                }
                for (name, expected) in [(last, step.end() as i64 - 1), (total, step.end() as i64)]
                {
                    let all = integers(&runs[0][name]);
                    if all.is_none_or(|all| all.iter().any(|n| *n != expected)) {
                        return Err(format!("its length {name} is not that of the sequence"));
                    }
                }
                found.fixed = Some(window);
                Ok(())
            }
            MaskSource::Operand { name, causal, left } => {
                let mask = name
                    .map(|name| MaskMatrix::new(&runs[0][name]))
                    .transpose()?;
                for row in 0..step.tokens {
                    let query = step.past + row;
                    let seen = (0..keys).map(|key| {
                        let by_flag = key < step.end()
                            && (!causal || key <= query)
                            && left.is_none_or(|left| key + left >= query);
                        match &mask {
                            Some(mask) => mask.at(row, key).filter(|_| by_flag),
                            None => by_flag.then_some(0.0),
                        }
                    });
                    found.row(query, seen)?;
                }
                Ok(())
            }
            MaskSource::Scores { to, .. } => {
                let [zero, one, two] = [0, 1, 2].map(|run: usize| MaskMatrix::new(&runs[run][to]));
                let (zero, one, two) = (zero?, one?, two?);
                for row in 0..step.tokens {
                    let mut factor = Ok(());
                    let seen: Vec<Option<f32>> = (0..keys)
                        .map(|key| {
                            let bias = zero.at(row, key)?;
                            let rise = |grid: &MaskMatrix<'_>| grid.at(row, key).map(|x| x - bias);
                            let (once, twice) = (rise(&one)?, rise(&two)?);
                            if (twice - 2.0 * once).abs() > 1e-5 * twice.abs() {
                                factor = Err("applies a non-linear function to its scores, which is not supported over a cache".to_owned());
                            }
                            match found.factor {
                                Some(known) if (known - once).abs() > 1e-6 * known.abs() => {
                                    factor = Err("scales its scores by different factors".to_owned());
                                }
                                Some(_) => {}
                                None => found.factor = Some(once),
                            }
                            Some(bias)
                        })
                        .collect();
                    factor?;
                    found.row(step.past + row, seen.into_iter())?;
                }
                Ok(())
            }
        }
    }
}

pub(super) fn integers(value: &Value) -> Option<Vec<i64>> {
    match value.as_i64() {
        Some(list) => Some(list.to_vec()),
        None => Some(value.as_i32()?.iter().map(|n| i64::from(*n)).collect()),
    }
}
