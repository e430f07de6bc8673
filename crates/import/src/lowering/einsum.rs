//! Einstein summation, as permutes, sums and matrix products.

use std::collections::BTreeMap;

use base::{Bytes, DType};
use graph::ops::{Gather, MatMul, Reduce, ReduceFunction};
use graph::{Dim, TensorId};

use super::{LoweringBuilder, MAX_CONSTANT_ELEMENTS};

/// Name of an axis: a letter, or a number for an axis of an ellipsis, counted from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Ellipsis(usize),
    Letter(char),
}

/// A tensor with the labels of its axes.
struct Term {
    id: TensorId,
    labels: Vec<Label>,
}

/// The labels of one side of an equation's comma; `rest` are the axes that an ellipsis stands for.
fn labels(text: &str, rest: usize) -> Result<Vec<Label>, String> {
    let mut labels = vec![];
    let mut text = text.trim();
    while let Some(next) = text.chars().next() {
        if let Some(after) = text.strip_prefix("...") {
            labels.extend((0..rest).rev().map(Label::Ellipsis));
            text = after;
            continue;
        }
        match next {
            ' ' => {}
            letter if letter.is_ascii_alphabetic() => labels.push(Label::Letter(letter)),
            other => return Err(format!("has {other:?} in its equation")),
        }
        text = &text[next.len_utf8()..];
    }
    Ok(labels)
}

/// The result's labels of an equation without one: those of the ellipsis, then letters that occur once, in order.
fn implicit(terms: &[Term], widest: usize) -> Vec<Label> {
    let mut counts: BTreeMap<Label, usize> = BTreeMap::new();
    for label in terms.iter().flat_map(|term| &term.labels) {
        *counts.entry(*label).or_default() += 1;
    }
    let once = counts.into_iter().filter_map(|(label, count)| match label {
        Label::Letter(_) if count == 1 => Some(label),
        _ => None,
    });
    let ellipsis = (0..widest).rev().map(Label::Ellipsis);
    ellipsis.chain(once).collect()
}

fn position(term: &Term, label: &Label) -> Option<usize> {
    term.labels.iter().position(|own| own == label)
}

impl LoweringBuilder {
    /// The sum of products that an equation of labels names.
    pub(crate) fn einsum(
        &mut self,
        equation: &str,
        operands: &[TensorId],
    ) -> Result<TensorId, String> {
        let (left, right) = match equation.split_once("->") {
            Some((left, right)) => (left, Some(right)),
            None => (equation, None),
        };
        let sides: Vec<&str> = left.split(',').collect();
        if sides.len() != operands.len() {
            return Err(format!(
                "its equation has {} operands, but the node has {}",
                sides.len(),
                operands.len()
            ));
        }
        let mut terms = vec![];
        let mut widest = 0;
        for (index, (side, id)) in sides.into_iter().zip(operands.iter().copied()).enumerate() {
            if self.dtype(id) != DType::F32 {
                return Err("of integers is not supported".into());
            }
            let rank = self.rank(id);
            let rest = match side.contains("...") {
                true => rank.checked_sub(labels(side, 0)?.len()),
                false => Some(0),
            };
            let own = labels(side, rest.unwrap_or(0))?;
            if own.len() != rank {
                return Err(format!(
                    "operand {index} has {rank} axes, but {side:?} in its equation"
                ));
            }
            widest = widest.max(rest.unwrap_or(0));
            terms.push(self.diagonals(Term { id, labels: own })?);
        }
        let wanted = match right {
            Some(right) => labels(right, widest)?,
            None => implicit(&terms, widest),
        };
        let known = |label: &Label| terms.iter().any(|term| term.labels.contains(label));
        let repeated = (1..wanted.len()).any(|at| wanted[..at].contains(&wanted[at]));
        if repeated || !wanted.iter().all(known) {
            return Err("its result repeats a label or has one that no operand has".into());
        }
        let mut terms = terms.into_iter();
        let mut result = terms.next().ok_or("has no operands")?;
        while let Some(next) = terms.next() {
            let later: Vec<Label> = terms
                .as_slice()
                .iter()
                .flat_map(|t| t.labels.clone())
                .collect();
            let needed = |label: &Label| wanted.contains(label) || later.contains(label);
            result = self.contract(result, next, &needed)?;
        }
        let result = self.summed(result, &|label| wanted.contains(label))?;
        let order = wanted.iter().map(|label| position(&result, label));
        let order = order.collect::<Option<Vec<usize>>>();
        let order = order.ok_or("its result has a label that no operand has")?;
        self.permute(result.id, order)
    }

    /// The diagonal of axes with one label.
    fn diagonals(&mut self, term: Term) -> Result<Term, String> {
        let Term { mut id, mut labels } = term;
        while let Some(second) = (1..labels.len()).find(|at| labels[..*at].contains(&labels[*at])) {
            let label = labels[second];
            let first = labels.iter().position(|own| *own == label).unwrap_or(0);
            let rank = labels.len();
            let order = (0..rank).filter(|axis| ![first, second].contains(axis));
            let order: Vec<usize> = order.chain([first, second]).collect();
            id = self.permute(id, order.clone())?;
            labels = order[..rank - 1].iter().map(|axis| labels[*axis]).collect();
            let mut shape = self.shape(id);
            let size = shape[rank - 1];
            let count = size
                .as_const()
                .filter(|n| n.saturating_mul(*n) <= MAX_CONSTANT_ELEMENTS);
            let count = count.filter(|_| shape[rank - 2] == size);
            let count = count.ok_or("a diagonal needs constant sizes that are equal")?;
            shape.truncate(rank - 2);
            shape.push(Dim::from(count * count));
            id = self.reshape(id, shape)?;
            let places: Vec<i64> = (0..count as i64)
                .map(|at| at * (count as i64 + 1))
                .collect();
            let index = self.constant(DType::I64, &[count], Bytes::from_slice(&places))?;
            id = self.emit(Gather { axis: rank - 2 }, &[id, index])?;
        }
        Ok(Term { id, labels })
    }

    /// Sums over the axes that are not needed.
    fn summed(&mut self, term: Term, needed: &dyn Fn(&Label) -> bool) -> Result<Term, String> {
        let axes: Vec<usize> = (0..term.labels.len())
            .filter(|axis| !needed(&term.labels[*axis]))
            .collect();
        if axes.is_empty() {
            return Ok(term);
        }
        let labels = term.labels.into_iter().filter(|label| needed(label));
        let labels = labels.collect();
        let reduce = Reduce {
            function: ReduceFunction::Sum,
            axes,
            keep: false,
        };
        let id = self.emit(reduce, &[term.id])?;
        Ok(Term { id, labels })
    }

    /// The product of two terms, summed over the labels that both have and that are not needed.
    fn contract(
        &mut self,
        a: Term,
        b: Term,
        needed: &dyn Fn(&Label) -> bool,
    ) -> Result<Term, String> {
        let (in_a, in_b) = (a.labels.clone(), b.labels.clone());
        let mut a = self.summed(a, &|label| needed(label) || in_b.contains(label))?;
        let mut b = self.summed(b, &|label| needed(label) || in_a.contains(label))?;
        // An axis of size 1 of an ellipsis broadcasts.
        for label in a.labels.clone() {
            let Some((i, j)) = position(&a, &label).zip(position(&b, &label)) else {
                continue;
            };
            let (mut left, mut right) = (self.shape(a.id), self.shape(b.id));
            if left[i] != right[j] && left[i] == Dim::from(1) {
                left[i] = right[j];
                a.id = self.expand(a.id, left)?;
            } else if left[i] != right[j] && right[j] == Dim::from(1) {
                right[j] = left[i];
                b.id = self.expand(b.id, right)?;
            }
        }
        let both = |label: &&Label| a.labels.contains(label) && b.labels.contains(label);
        let batch: Vec<Label> = a
            .labels
            .iter()
            .filter(both)
            .filter(|l| needed(l))
            .copied()
            .collect();
        let summed: Vec<Label> = a
            .labels
            .iter()
            .filter(both)
            .filter(|l| !needed(l))
            .copied()
            .collect();
        let rows: Vec<Label> = a.labels.iter().filter(|l| !both(l)).copied().collect();
        let columns: Vec<Label> = b.labels.iter().filter(|l| !both(l)).copied().collect();
        let (left, sizes) = self.matrix(&a, [&batch, &rows, &summed])?;
        let (right, column_sizes) = self.matrix(&b, [&batch, &summed, &columns])?;
        let product = self.emit(MatMul::default(), &[left, right])?;
        let mut shape = sizes[..batch.len() + rows.len()].to_vec();
        shape.extend_from_slice(&column_sizes[batch.len() + summed.len()..]);
        let id = self.reshape(product, shape)?;
        let labels = batch.into_iter().chain(rows).chain(columns).collect();
        Ok(Term { id, labels })
    }

    /// A term as matrices: the first labels are batch axes, the others are joined to rows and columns. Also the sizes of
    /// all axes in this order.
    fn matrix(
        &mut self,
        term: &Term,
        [batch, rows, columns]: [&[Label]; 3],
    ) -> Result<(TensorId, Vec<Dim>), String> {
        let all = batch.iter().chain(rows).chain(columns);
        let order = all
            .map(|label| position(term, label))
            .collect::<Option<Vec<usize>>>();
        let order = order.ok_or("repeats a label")?;
        let id = self.permute(term.id, order)?;
        let sizes = self.shape(id);
        let (outer, inner) = sizes.split_at(batch.len());
        let (above, below) = inner.split_at(rows.len());
        let joined = Dim::product(above).zip(Dim::product(below));
        let (above, below) =
            joined.ok_or("multiplies three dynamic sizes, which is not supported")?;
        let mut shape = outer.to_vec();
        shape.extend([above, below]);
        Ok((self.reshape(id, shape)?, sizes))
    }
}
