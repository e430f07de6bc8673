//! What attention lets a query see, found by computing its masks at some sizes.
//!
//! Exporters write the same few masks in countless ways. What a mask means is what it holds: it is computed for steps at
//! several places of a sequence, and it must show every query all that came before it, or the last so many of that.

use std::collections::{BTreeMap, HashMap};

use base::DType;
use graph::Value;

use super::layers::{CacheForm, CacheLayer, port};
use super::mask::{Found, Grid};
use super::probe::{Cut, probe};
use super::site::{Mask, Present, Side, Site};
use crate::ImportError;
use crate::error::Problem;
use crate::genai::DecoderNames;
use crate::onnx::Onnx;
use crate::onnx::schema::DimProto;

/// A step that masks are computed for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) past: usize,
    pub(super) tokens: usize,
}

impl Place {
    pub(super) fn end(self) -> usize {
        self.past + self.tokens
    }
}

/// What was found out about attention over a cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::onnx) struct Sight {
    /// How many keys a query sees, its own included; `None` for all.
    pub(in crate::onnx) window: Option<u32>,
    /// Factor on the scores besides the site's own scale.
    pub(in crate::onnx) factor: f32,
}

/// A model with the attention in it.
pub(super) struct Look<'a, 'b> {
    pub(super) file: &'a Onnx,
    pub(super) names: &'b DecoderNames,
    pub(super) caches: &'b [CacheLayer],
    pub(super) presents: &'b HashMap<&'a str, Present<'a>>,
    pub(super) sites: &'b [Site<'a>],
    /// Most positions that there can be.
    pub(super) horizon: usize,
}

impl<'a> Look<'a, '_> {
    /// What every site sees.
    pub(super) fn sights(&self) -> Result<Vec<Sight>, ImportError> {
        let mut found: Vec<Found> = self.sites.iter().map(|_| Found::default()).collect();
        for place in self.places() {
            let wanted = self.wanted();
            let mut cuts = self.cuts(place, 0.0)?;
            let mut runs = vec![self.probe(&cuts, &wanted)?];
            if self.sites.iter().any(Site::is_spelled_out) {
                for score in [1.0, 2.0] {
                    cuts = self.cuts(place, score)?;
                    runs.push(self.probe(&cuts, &wanted)?);
                }
            }
            for (site, found) in self.sites.iter().zip(&mut found) {
                let result = self.look(site, place, &runs, found);
                result.map_err(|reason| self.wrong(site, reason))?;
            }
        }
        let views = self.views()?;
        let all = self.sites.iter().zip(found).zip(views);
        all.map(|((site, found), factor)| {
            let window = found.window().map_err(|reason| self.wrong(site, reason))?;
            let window = window.filter(|window| *window < self.horizon);
            Ok(Sight {
                window: window.map(|window| window as u32),
                factor: factor * found.factor.unwrap_or(1.0),
            })
        })
        .collect()
    }

    pub(super) fn wrong(&self, site: &Site<'_>, reason: String) -> ImportError {
        let node = &self.file.nodes[site.node];
        let (node, op) = (node.label.clone(), node.op.clone());
        Problem::Op { node, op, reason }.into()
    }

    /// Steps at the beginning, in the middle and at the end of what there can be.
    pub(super) fn places(&self) -> impl Iterator<Item = Place> + use<> {
        let most = self.horizon;
        let places = [
            (0, 1),
            (0, 4),
            (3, 1),
            (2, 5),
            (most / 2, 1),
            (most.saturating_sub(3), 3),
            (most.saturating_sub(1), 1),
        ];
        let fits = move |place: &Place| place.end() <= most;
        places
            .into_iter()
            .map(|(past, tokens)| Place { past, tokens })
            .filter(fits)
    }

    /// The tensors whose elements say what is seen.
    fn wanted(&self) -> Vec<&str> {
        let mut wanted: Vec<&str> = vec![];
        for site in self.sites {
            match site.mask {
                Mask::Operand { name, .. } => wanted.extend(name),
                Mask::Scores { to, .. } => wanted.push(to),
                Mask::Lengths {
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
        cuts: &BTreeMap<String, Cut>,
        wanted: &[&str],
    ) -> Result<BTreeMap<String, Value>, ImportError> {
        if wanted.is_empty() {
            return Ok(BTreeMap::new());
        }
        let values = probe(self.file, cuts, wanted)?;
        let names = wanted.iter().map(|name| (*name).to_owned());
        Ok(names.zip(values).collect())
    }

    /// What stands for the inputs of a step, and for what the network would compute.
    pub(super) fn cuts(
        &self,
        place: Place,
        score: f32,
    ) -> Result<BTreeMap<String, Cut>, ImportError> {
        let Place { past, tokens } = place;
        let names = self.names;
        let positions: Vec<i64> = (past as i64..).take(tokens).collect();
        let drivers = [
            (&names.input_ids, vec![1, tokens], vec![0; tokens]),
            (&names.position_ids, vec![1, tokens], positions),
            (
                &names.attention_mask,
                vec![1, place.end()],
                vec![1; place.end()],
            ),
            (&names.write_indices, vec![1], vec![past as i64]),
            (&names.nonpad_kv_seqlen, vec![1], vec![place.end() as i64]),
        ];
        let mut cuts = BTreeMap::new();
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
            cuts.insert(name.clone(), Cut::Value(value));
        }
        for (index, cache) in self.caches.iter().enumerate() {
            for (name, side) in [(&cache.key, Side::Key), (&cache.value, Side::Value)] {
                let shape = self.cache_shape(index, side, past)?;
                cuts.insert(name.clone(), Cut::Shape(shape));
            }
        }
        for (name, present) in self.presents {
            let shape = self.cache_shape(present.cache, present.side(), place.end())?;
            cuts.insert((*name).to_owned(), Cut::Shape(shape));
        }
        for site in self.sites {
            if let Mask::Scores { from, .. } = site.mask {
                let keys = self.rows(site.cache, place.end());
                let shape = [1, 1, tokens, keys];
                let scores = Value::f32(shape, vec![score; tokens * keys]);
                cuts.insert(from.to_owned(), Cut::Value(scores));
            }
        }
        Ok(cuts)
    }

    /// Rows of a cache when it holds so many tokens.
    pub(super) fn rows(&self, cache: usize, length: usize) -> usize {
        self.caches[cache].form.fixed_rows().unwrap_or(length)
    }

    pub(super) fn cache_shape(
        &self,
        cache: usize,
        side: Side,
        length: usize,
    ) -> Result<Vec<usize>, ImportError> {
        let name = match side {
            Side::Key => &self.caches[cache].key,
            Side::Value => &self.caches[cache].value,
        };
        let dims = port(self.file, name)?.dims.as_deref().unwrap_or_default();
        let last = match dims.last() {
            Some(DimProto::Number(n)) => *n as usize,
            _ => 0,
        };
        Ok(match self.caches[cache].form {
            CacheForm::Static { max_seq_len, .. } => vec![1, max_seq_len, last],
            CacheForm::Past { heads, rows } => vec![1, heads, rows.unwrap_or(length), last],
        })
    }

    /// Adds what a site's mask shows at one place.
    fn look(
        &self,
        site: &Site<'_>,
        place: Place,
        runs: &[BTreeMap<String, Value>],
        found: &mut Found,
    ) -> Result<(), String> {
        let keys = self.rows(site.cache, place.end());
        match site.mask {
            Mask::Lengths {
                last,
                total,
                positions,
                window,
            } => {
                let counted: Vec<i64> = (place.past as i64..).take(place.tokens).collect();
                if positions.is_some_and(|name| integers(&runs[0][name]) != Some(counted)) {
                    return Err("rotates by positions that are not those of the sequence".into());
                }
                for (name, expected) in
                    [(last, place.end() as i64 - 1), (total, place.end() as i64)]
                {
                    let all = integers(&runs[0][name]);
                    if all.is_none_or(|all| all.iter().any(|n| *n != expected)) {
                        return Err(format!("its length {name} is not that of the sequence"));
                    }
                }
                found.fixed = Some(window);
                Ok(())
            }
            Mask::Operand { name, causal, left } => {
                let mask = name.map(|name| Grid::new(&runs[0][name])).transpose()?;
                for row in 0..place.tokens {
                    let query = place.past + row;
                    let seen = (0..keys).map(|key| {
                        let by_flag = key < place.end()
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
            Mask::Scores { to, .. } => {
                let [zero, one, two] = [0, 1, 2].map(|run: usize| Grid::new(&runs[run][to]));
                let (zero, one, two) = (zero?, one?, two?);
                for row in 0..place.tokens {
                    let mut factor = Ok(());
                    let seen: Vec<Option<f32>> = (0..keys)
                        .map(|key| {
                            let bias = zero.at(row, key)?;
                            let rise = |grid: &Grid<'_>| grid.at(row, key).map(|x| x - bias);
                            let (once, twice) = (rise(&one)?, rise(&two)?);
                            if (twice - 2.0 * once).abs() > 1e-5 * twice.abs() {
                                factor = Err("bends its scores, which is not supported".to_owned());
                            }
                            match found.factor {
                                Some(known) if (known - once).abs() > 1e-6 * known.abs() => {
                                    factor = Err("scales its scores unevenly".to_owned());
                                }
                                Some(_) => {}
                                None => found.factor = Some(once),
                            }
                            Some(bias)
                        })
                        .collect();
                    factor?;
                    found.row(place.past + row, seen.into_iter())?;
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
