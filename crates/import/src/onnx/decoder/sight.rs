//! What attention lets a query see, found by computing its masks at some sizes.
//!
//! Exporters write the same few masks in countless ways. What a mask means is what it holds: it is computed for steps at
//! several places of a sequence, and it must show every query all that came before it, or the last so many of that.

use std::collections::{BTreeMap, HashMap, HashSet};

use base::DType;
use graph::Value;

use super::layers::{CacheForm, CacheLayer, port};
use super::probe::{Cut, probe};
use super::site::{Mask, Present, Side, Site, Viewed};
use crate::ImportError;
use crate::error::Problem;
use crate::genai::DecoderNames;
use crate::onnx::Onnx;
use crate::onnx::schema::DimProto;

/// A bias that hides a key for good.
const HIDDEN: f32 = -1e4;

/// A step that masks are computed for.
#[derive(Clone, Copy, Debug)]
struct Place {
    past: usize,
    tokens: usize,
}

impl Place {
    fn end(self) -> usize {
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

    fn wrong(&self, site: &Site<'_>, reason: String) -> ImportError {
        let node = &self.file.nodes[site.node];
        let (node, op) = (node.label.clone(), node.op.clone());
        Problem::Op { node, op, reason }.into()
    }

    /// Steps at the beginning, in the middle and at the end of what there can be.
    fn places(&self) -> impl Iterator<Item = Place> + use<> {
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
                Mask::Lengths { last, total, .. } => wanted.extend([last, total]),
            }
        }
        wanted.sort_unstable();
        wanted.dedup();
        wanted
    }

    fn probe(
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
    fn cuts(&self, place: Place, score: f32) -> Result<BTreeMap<String, Cut>, ImportError> {
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
    fn rows(&self, cache: usize, length: usize) -> usize {
        self.caches[cache].form.fixed_rows().unwrap_or(length)
    }

    fn cache_shape(
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
                window,
            } => {
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

    /// Per site, the factor that its view of the keys has.
    fn views(&self) -> Result<Vec<f32>, ImportError> {
        let tokens = self.horizon.min(3);
        let place = Place { past: 0, tokens };
        let mut cuts = self.cuts(place, 0.0)?;
        for (name, present) in self.presents {
            let shape = self.cache_shape(present.cache, present.side(), place.end())?;
            let count = shape.iter().product::<usize>();
            let numbers = Value::f32(shape, (1..=count).map(|n| n as f32).collect());
            cuts.insert((*name).to_owned(), Cut::Value(numbers));
        }
        let mut factors = vec![1.0; self.sites.len()];
        for (site, factor) in self.sites.iter().zip(&mut factors) {
            for view in &site.views {
                let found = probe(self.file, &cuts, &[view.operand])?;
                let Some(Cut::Value(present)) = cuts.get(view.present) else {
                    continue;
                };
                let ratio = self.view(site, view, present, &found[0]);
                *factor *= ratio.map_err(|reason| self.wrong(site, reason))?;
            }
        }
        Ok(factors)
    }

    /// The factor between a view and the cache, whose elements must lie in it as attention takes them.
    fn view(
        &self,
        site: &Site<'_>,
        view: &Viewed<'_>,
        present: &Value,
        found: &Value,
    ) -> Result<f32, String> {
        let wrong = || format!("takes {} in a form that is not known", view.present);
        let (rows, width) = (
            self.rows(site.cache, self.horizon.min(3)),
            present.shape[present.shape.len() - 1],
        );
        let kv_heads = match self.caches[site.cache].form {
            CacheForm::Past { heads, .. } => heads,
            CacheForm::Static { .. } => site.heads.ok_or_else(wrong)?.1,
        };
        let dim = match present.shape.len() {
            4 => width,
            _ => width / kv_heads.max(1),
        };
        let held = |head: usize, row: usize, at: usize| match present.shape.len() {
            4 => (head * rows + row) * dim + at,
            _ => (row * kv_heads + head) * dim + at,
        };
        let heads = match (&found.shape[..], view.transposed) {
            (&[1, heads, d, r], true) if (d, r) == (dim, rows) => heads,
            (&[1, heads, r, d], false) if (d, r) == (dim, rows) => heads,
            (&[1, r, w], false) if r == rows && w == kv_heads * dim => kv_heads,
            _ => return Err(wrong()),
        };
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(wrong());
        }
        let flat = found.shape.len() == 3;
        let placed = |head: usize, row: usize, at: usize| match (flat, view.transposed) {
            (true, _) => (row * heads + head) * dim + at,
            (false, true) => (head * dim + at) * rows + row,
            (false, false) => (head * rows + row) * dim + at,
        };
        let (held_all, found_all) = (
            present.as_f32().ok_or_else(wrong)?,
            found.as_f32().ok_or_else(wrong)?,
        );
        let ratio = found_all.first().ok_or_else(wrong)? / held_all[0];
        for head in 0..heads {
            for row in 0..rows {
                for at in 0..dim {
                    let expected = ratio * held_all[held(head / (heads / kv_heads), row, at)];
                    let found = found_all[placed(head, row, at)];
                    if (found - expected).abs() > 1e-6 * expected.abs() {
                        return Err(wrong());
                    }
                }
            }
        }
        match view.side {
            Side::Value if ratio != 1.0 => Err(wrong()),
            _ => Ok(ratio),
        }
    }
}

impl<'a> Look<'a, '_> {
    /// The tensors that hold the positions of the step's tokens, among those that follow from a step's inputs alone.
    pub(super) fn positions(&self) -> Result<Vec<&'a str>, ImportError> {
        let mut candidates = self.driven();
        for place in self.places().filter(|place| place.end() < 8) {
            if candidates.is_empty() {
                break;
            }
            // What cannot be computed is no position; whoever needs it is told.
            let Ok(values) = self.probe(&self.cuts(place, 0.0)?, &candidates) else {
                return Ok(vec![]);
            };
            let positions: Vec<i64> = (place.past as i64..).take(place.tokens).collect();
            candidates.retain(|name| {
                let value = &values[*name];
                value.shape == [1, place.tokens] && integers(value).as_ref() == Some(&positions)
            });
        }
        Ok(candidates)
    }

    /// What follows from a mask, the indices and shapes.
    fn driven(&self) -> Vec<&'a str> {
        let names = self.names;
        let drivers = [
            &names.attention_mask,
            &names.write_indices,
            &names.nonpad_kv_seqlen,
        ];
        let file: &'a Onnx = self.file;
        let inputs = file.inputs.iter().map(|port| &port.name);
        let inputs = inputs.filter(|name| drivers.contains(name));
        let mut driven: HashSet<&str> = inputs.map(|name| &name[..]).collect();
        let mut fixed: HashSet<&str> = file.tensors.keys().map(|name| &name[..]).collect();
        fixed.insert("");
        let mut found: Vec<&'a str> = vec![];
        for node in &file.nodes {
            let mut inputs = node.inputs.iter().map(|name| &name[..]);
            let outputs = node.outputs.iter().map(|name| &name[..]);
            let outputs = outputs.filter(|name| !name.is_empty());
            let is_fixed = |name: &str| fixed.contains(name);
            // A shape follows from the step, whatever the elements are.
            if node.op == "Shape" || inputs.clone().all(is_fixed) {
                fixed.extend(outputs);
            } else if inputs.all(|name| is_fixed(name) || driven.contains(name)) {
                driven.extend(outputs.clone());
                found.extend(outputs);
            }
        }
        found
    }
}

fn integers(value: &Value) -> Option<Vec<i64>> {
    match value.as_i64() {
        Some(list) => Some(list.to_vec()),
        None => Some(value.as_i32()?.iter().map(|n| i64::from(*n)).collect()),
    }
}

/// A mask for all heads: by query and key, the bias of what is seen.
struct Grid<'a> {
    value: &'a Value,
    rows: usize,
    keys: usize,
}

impl<'a> Grid<'a> {
    fn new(value: &'a Value) -> Result<Grid<'a>, String> {
        let [outer @ .., rows, keys] = &value.shape[..] else {
            return Err("has a mask without rows".into());
        };
        if outer.iter().any(|n| *n != 1) {
            return Err("has a mask that is not the same for all heads".into());
        }
        Ok(Grid {
            value,
            rows: *rows,
            keys: *keys,
        })
    }

    /// The bias of a key, `None` where it is hidden.
    fn at(&self, row: usize, key: usize) -> Option<f32> {
        let row = if self.rows == 1 { 0 } else { row };
        let key = if self.keys == 1 { 0 } else { key };
        // What a mask leaves out at its end is hidden.
        if key >= self.keys || row >= self.rows {
            return None;
        }
        let at = row * self.keys + key;
        match self.value.as_bool() {
            Some(truths) => truths[at].then_some(0.0),
            None => self
                .value
                .as_f32()
                .map(|list| list[at])
                .filter(|x| *x > HIDDEN),
        }
    }
}

/// What the rows seen so far say.
#[derive(Default)]
struct Found {
    /// The window that rows have which do not see all.
    window: Option<usize>,
    /// The longest past that was seen whole.
    whole: usize,
    /// A window that an attribute states.
    fixed: Option<Option<usize>>,
    factor: Option<f32>,
}

impl Found {
    /// Adds one query's row.
    fn row(&mut self, query: usize, seen: impl Iterator<Item = Option<f32>>) -> Result<(), String> {
        let mut first = None;
        let mut next = 0;
        for (key, bias) in seen.enumerate() {
            let Some(bias) = bias else { continue };
            let (start, same) = *first.get_or_insert((key, bias));
            if bias != same {
                return Err(
                    "adds a bias to its scores, which is not supported over a cache".into(),
                );
            }
            if key > query {
                return Err("lets a query see what comes after it".into());
            }
            if key != start && key != next {
                return Err("hides keys between others".into());
            }
            next = key + 1;
        }
        let Some((start, _)) = first.filter(|_| next == query + 1) else {
            return Err("hides a query's own key".into());
        };
        let count = next - start;
        match start {
            0 => self.whole = self.whole.max(count),
            _ if self.window.is_some_and(|window| window != count) => {
                return Err("shows some queries more than others".into());
            }
            _ => self.window = Some(count),
        }
        Ok(())
    }

    fn window(&self) -> Result<Option<usize>, String> {
        if let Some(fixed) = self.fixed {
            return Ok(fixed);
        }
        match self.window {
            Some(window) if window < self.whole => {
                Err("shows some queries more than others".into())
            }
            window => Ok(window),
        }
    }
}
