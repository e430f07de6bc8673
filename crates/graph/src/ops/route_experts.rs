//! The choice of experts for a row, and their weights.

use super::operands::{f32s, last_dim, require_f32, require_shape};
use super::{DimFormatter, OpDefinition};
use crate::tensor_type::TensorType;
use crate::{Bindings, Value};

/// Weights of the experts that each row chooses: operands `logits [.., E]` f32 and optionally `bias [E]` f32, result `[.., E]` with
/// zeros for all experts but the chosen.
///
/// A row's scores are a function of its logits. The experts with the `used` largest sums of score and bias are chosen, the first of
/// equal ones; their scores, without the bias, are their weights.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteExperts {
    /// Experts that a row chooses.
    pub used: usize,
    /// The scores of a row.
    pub scores: ExpertScores,
    /// The weights of a row are divided by their sum.
    pub normalise: bool,
    /// Factor on all weights.
    pub scale: f32,
    /// Experts are only chosen in some groups of theirs.
    pub groups: Option<ExpertGroups>,
}

/// The scores of a row's experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertScores {
    /// Softmax of the row.
    Softmax,
    /// The sigmoid of each logit.
    Sigmoid,
}

/// Groups of consecutive experts; only those of the groups with the largest sums of their two best experts are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups; divides the number of experts.
    pub count: usize,
    /// Groups that a row may choose experts of.
    pub used: usize,
}

impl ExpertScores {
    fn name(self) -> &'static str {
        match self {
            ExpertScores::Softmax => "softmax",
            ExpertScores::Sigmoid => "sigmoid",
        }
    }
}

impl RouteExperts {
    /// Computes the weights of one row. `order` is scratch.
    pub fn route_row(
        &self,
        logits: &[f32],
        bias: Option<&[f32]>,
        weights: &mut [f32],
        order: &mut Vec<(f32, usize)>,
    ) {
        match self.scores {
            ExpertScores::Softmax => {
                let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                for (score, logit) in weights.iter_mut().zip(logits) {
                    *score = (logit - max).exp();
                }
                let sum: f32 = weights.iter().sum();
                weights.iter_mut().for_each(|score| *score /= sum);
            }
            ExpertScores::Sigmoid => {
                for (score, logit) in weights.iter_mut().zip(logits) {
                    *score = 1.0 / (1.0 + (-logit).exp());
                }
            }
        }
        let biased = |expert: usize| weights[expert] + bias.map_or(0.0, |bias| bias[expert]);
        order.clear();
        order.extend((0..weights.len()).map(|expert| (biased(expert), expert)));
        if let Some(groups) = self.groups {
            keep_groups(order, groups);
        }
        sort_descending(order);
        order.truncate(self.used);
        let chosen = |expert: usize| order.iter().any(|(_, other)| *other == expert);
        for (expert, weight) in weights.iter_mut().enumerate() {
            if !chosen(expert) {
                *weight = 0.0;
            }
        }
        let mut factor = self.scale;
        if self.normalise {
            let sum: f32 = weights.iter().sum();
            factor /= sum.max(f32::MIN_POSITIVE);
        }
        weights.iter_mut().for_each(|weight| *weight *= factor);
    }
}

/// Keeps the experts of the best groups.
fn keep_groups(order: &mut Vec<(f32, usize)>, groups: ExpertGroups) {
    let size = order.len() / groups.count;
    let mut sums: Vec<(f32, usize)> = Vec::with_capacity(groups.count);
    for (group, experts) in order.chunks(size).enumerate() {
        let mut best = experts.to_vec();
        sort_descending(&mut best);
        sums.push((best.iter().take(2).map(|(score, _)| score).sum(), group));
    }
    sort_descending(&mut sums);
    sums.truncate(groups.used);
    order.retain(|(_, expert)| sums.iter().any(|(_, group)| *group == expert / size));
}

/// Sorts by falling scores; of equal ones, the first stays first.
fn sort_descending(scores: &mut [(f32, usize)]) {
    scores.sort_by(|a, b| b.0.total_cmp(&a.0));
}

impl OpDefinition for RouteExperts {
    fn name(&self) -> &'static str {
        "route_experts"
    }

    fn attributes(&self, _: DimFormatter<'_>) -> Vec<String> {
        let mut all = vec![
            format!("used: {}", self.used),
            format!("scores: {}", self.scores.name()),
            format!("normalise: {}", self.normalise),
            format!("scale: {:e}", self.scale),
        ];
        if let Some(ExpertGroups { count, used }) = self.groups {
            all.push(format!("groups: {used} of {count}"));
        }
        all
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<TensorType, String> {
        let [logits, bias @ ..] = inputs else {
            return Err("takes logits and optionally a bias".into());
        };
        require_f32("logits", logits)?;
        let experts = last_dim("logits", logits)?;
        match bias {
            [] => {}
            [bias] => {
                require_f32("bias", bias)?;
                require_shape("bias", bias, &[experts.into()])?;
            }
            _ => return Err(format!("takes 1 or 2 operands, has {}", inputs.len())),
        }
        let available = match self.groups {
            None => experts,
            Some(ExpertGroups { count, used }) => {
                if count == 0 || !experts.is_multiple_of(count) || !(1..=count).contains(&used) {
                    return Err(format!(
                        "cannot choose {used} of {count} groups of {experts} experts"
                    ));
                }
                experts / count * used
            }
        };
        if !(1..=available).contains(&self.used) {
            return Err(format!(
                "cannot choose {} of {available} experts",
                self.used
            ));
        }
        Ok((*logits).clone())
    }

    fn evaluate(&self, inputs: &[&Value], shape: &[usize], _: &Bindings) -> Result<Value, String> {
        let logits = f32s(&inputs[0])?;
        let bias = inputs.get(1).map(f32s).transpose()?;
        let (_, experts) = inputs[0].rows();
        let mut out = vec![0.0; logits.len()];
        let mut order = Vec::new();
        let rows = logits.chunks(experts.max(1));
        for (logits, weights) in rows.zip(out.chunks_mut(experts.max(1))) {
            self.route_row(logits, bias, weights, &mut order);
        }
        Ok(Value::f32(shape, out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(op: RouteExperts, logits: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
        let mut weights = vec![0.0; logits.len()];
        op.route_row(logits, bias, &mut weights, &mut Vec::new());
        weights
    }

    fn sigmoid(used: usize) -> RouteExperts {
        RouteExperts {
            used,
            scores: ExpertScores::Sigmoid,
            normalise: false,
            scale: 1.0,
            groups: None,
        }
    }

    #[test]
    fn normalised_softmax_is_the_softmax_of_the_chosen() {
        let op = RouteExperts {
            scores: ExpertScores::Softmax,
            normalise: true,
            ..sigmoid(2)
        };
        let weights = route(op, &[1.0, 3.0, 2.0, 0.5], None);
        let first = 1.0 / (1.0 + (-1f32).exp());
        assert_eq!((weights[0], weights[3]), (0.0, 0.0));
        assert!((weights[1] - first).abs() < 1e-6 && (weights[2] - 1.0 + first).abs() < 1e-6);
    }

    #[test]
    fn bias_chooses_and_does_not_weigh() {
        let bias = [0.0, 0.0, 1.0];
        assert_eq!(route(sigmoid(1), &[0.0; 3], Some(&bias)), [0.0, 0.0, 0.5]);
        // The first of equal experts.
        assert_eq!(route(sigmoid(2), &[0.0; 3], None), [0.5, 0.5, 0.0]);
    }

    #[test]
    fn groups_are_chosen_by_their_two_best() {
        let groups = Some(ExpertGroups { count: 2, used: 1 });
        let op = RouteExperts {
            groups,
            scale: 2.0,
            ..sigmoid(1)
        };
        let logits = [4.0, -9.0, -9.0, 1.0, 0.0, 1.0];
        let weights = route(op, &logits, None);
        let chosen: Vec<usize> = (0..6).filter(|i| weights[*i] != 0.0).collect();
        assert_eq!(chosen, [3]);
        assert!((weights[3] - 2.0 / (1.0 + (-1f32).exp())).abs() < 1e-6);
    }

    #[test]
    fn impossible_choices_are_refused() {
        let logits = TensorType::f32([2.into(), 6.into()]);
        let bad = [
            (sigmoid(7), "cannot choose 7 of 6 experts"),
            (
                RouteExperts {
                    groups: Some(ExpertGroups { count: 4, used: 1 }),
                    ..sigmoid(1)
                },
                "cannot choose 1 of 4 groups of 6 experts",
            ),
        ];
        for (op, message) in bad {
            assert_eq!(op.infer(&[&logits]).unwrap_err(), message);
        }
    }
}
