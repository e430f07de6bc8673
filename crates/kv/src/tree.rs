//! A committed prefix with a tree of candidates behind it, for speculative decoding.

use crate::plan::{Classes, LayerPlan};
use crate::ring::Rings;
use crate::{
    Bookkeeping, Cache, CacheConfig, Gather, KvError, KvErrorKind, Run, StepPlan, TreeCache,
};

/// A sequence whose next tokens are tried as a tree.
///
/// The prefix lies in the cells before `len`; candidate `i` lies in cell `len + i`. A candidate sees the prefix, its
/// ancestors and itself, whatever the positions of the others: siblings share a position and do not see each other.
/// Without candidates the cache serves prefill and plain decode. Rings have the row of cell `c` at `c mod slots`, so
/// there are at most as many candidates as a step may have tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    classes: Classes,
    rings: Rings,
    capacity: u32,
    len: u32,
    nodes: Vec<Node>,
    /// Candidates that a forward has computed; those behind are the next forward's tokens.
    computed: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Node {
    parent: Option<u32>,
    /// 0 for a candidate that follows the prefix.
    depth: u32,
}

impl Tree {
    /// An empty cache.
    pub fn new(config: &CacheConfig) -> Tree {
        let classes = Classes::new(config.layers.iter().map(|l| l.window));
        Tree {
            rings: Rings::new(0, config, &classes),
            classes,
            capacity: config.capacity,
            len: 0,
            nodes: vec![],
            computed: 0,
        }
    }

    /// Candidates proposed since the last commit.
    pub fn candidates(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// The position that a candidate's token must have.
    pub fn position(&self, node: u32) -> Option<u32> {
        self.nodes.get(node as usize).map(|n| self.len + n.depth)
    }

    /// The shortest length that `rewind` can go back to.
    pub fn rewind_floor(&self) -> u32 {
        self.rings.floor(&self.classes)
    }

    fn frontier(&self) -> usize {
        self.nodes.len() - self.computed as usize
    }

    /// The tokens' positions that the next step must have, from the first.
    fn expected(&self, index: usize) -> u32 {
        match self.nodes.get(self.computed as usize + index) {
            Some(node) => self.len + node.depth,
            None => self.len + index as u32,
        }
    }

    fn check(&self, positions: &[i32]) -> Result<(), KvError> {
        if positions.is_empty() {
            return Err(KvErrorKind::EmptyStep.into());
        }
        if self.nodes.is_empty() {
            let needed = self.len as u64 + positions.len() as u64;
            if needed > self.capacity as u64 {
                return Err(KvErrorKind::Full {
                    needed,
                    capacity: self.capacity,
                }
                .into());
            }
            self.rings.check(positions.len())?;
        } else if self.frontier() == 0 {
            return Err(KvErrorKind::TreeActive {
                candidates: self.candidates(),
            }
            .into());
        } else if self.frontier() != positions.len() {
            return Err(KvErrorKind::TokenCount {
                declared: self.frontier(),
                found: positions.len(),
            }
            .into());
        }
        for (index, &found) in positions.iter().enumerate() {
            let expected = self.expected(index);
            if i64::from(found) != i64::from(expected) {
                return Err(KvErrorKind::Position {
                    index,
                    found: found.into(),
                    expected,
                }
                .into());
            }
        }
        Ok(())
    }

    /// One past the last cell that a step of so many tokens writes.
    fn end(&self, tokens: u32) -> u32 {
        match self.nodes.is_empty() {
            true => self.len + tokens,
            false => self.len + self.candidates(),
        }
    }

    fn plan_class(
        &self,
        window: Option<u32>,
        tokens: u32,
        plan: &mut LayerPlan,
        chain: &mut Vec<u64>,
    ) {
        let ring = self.rings.of(window);
        plan.visible.clear();
        plan.writes.clear();
        plan.cells = ring.cells(self.end(tokens));
        let first = |position: u32| window.map_or(0, |w| (position + 1).saturating_sub(w));
        if self.nodes.is_empty() {
            let list = plan.visible.open_list();
            let end = self.len + tokens;
            ring.runs(first(self.len)..end)
                .for_each(|run| plan.visible.push_run(run));
            for position in self.len..end {
                let seen = first(position)..position + 1;
                plan.visible.push_query(list, seen);
                plan.writes.push(ring.cell(position));
            }
            return;
        }
        for node in self.computed..self.candidates() {
            chain.clear();
            let mut at = Some(node);
            while let Some(ancestor) = at {
                chain.push(u64::from(ancestor));
                at = self.nodes[ancestor as usize].parent;
            }
            let list = plan.visible.open_list();
            ring.runs(first(self.len)..self.len)
                .for_each(|run| plan.visible.push_run(run));
            for (position, ancestor) in (self.len..).zip(chain.iter().rev()) {
                let cell = ring.cell(self.len + *ancestor as u32);
                let len = 1;
                plan.visible.push_run(Run {
                    position,
                    cell,
                    len,
                });
            }
            let position = self.len + self.nodes[node as usize].depth;
            plan.visible.push_query(list, first(position)..position + 1);
            plan.writes.push(ring.cell(self.len + node));
        }
    }
}

impl Cache for Tree {
    fn can_extend(&self, n: u32) -> bool {
        n <= self.capacity - self.len - self.candidates()
    }

    fn capacity(&self) -> u32 {
        self.capacity
    }

    fn len(&self) -> u32 {
        self.len
    }

    fn clear(&mut self) {
        (self.len, self.computed) = (0, 0);
        self.nodes.clear();
        self.rings.clear();
    }

    fn rewind(&mut self, len: u32) -> Result<(), KvError> {
        if !self.nodes.is_empty() {
            return Err(KvErrorKind::TreeActive {
                candidates: self.candidates(),
            }
            .into());
        }
        if len > self.len {
            return Err(KvErrorKind::RewindForward {
                to: len,
                len: self.len,
            }
            .into());
        }
        let floor = self.rewind_floor();
        if len < floor {
            return Err(KvErrorKind::RewindTooFar { to: len, floor }.into());
        }
        self.len = len;
        Ok(())
    }
}

impl TreeCache for Tree {
    fn propose(&mut self, parents: &[Option<u32>]) -> Result<(), KvError> {
        if self.frontier() > 0 {
            return Err(KvErrorKind::StepPending.into());
        }
        if parents.is_empty() {
            return Err(KvErrorKind::EmptyStep.into());
        }
        let needed = self.len as u64 + self.nodes.len() as u64 + parents.len() as u64;
        if needed > self.capacity as u64 {
            return Err(KvErrorKind::Full {
                needed,
                capacity: self.capacity,
            }
            .into());
        }
        let before = self.nodes.len();
        self.rings.check(before + parents.len())?;
        for (node, &parent) in (before as u32..).zip(parents) {
            let depth = match parent {
                None => 0,
                Some(p) if p < node => self.nodes[p as usize].depth + 1,
                Some(parent) => {
                    self.nodes.truncate(before);
                    return Err(KvErrorKind::Parent { node, parent }.into());
                }
            };
            self.nodes.push(Node { parent, depth });
        }
        Ok(())
    }

    fn commit_path(&mut self, accepted: &[u32]) -> Result<Gather, KvError> {
        let mut parent = None;
        for &node in accepted {
            let known = self.nodes[..self.computed as usize].get(node as usize);
            if known.is_none_or(|n| n.parent != parent) {
                return Err(KvErrorKind::NotAChain { node, parent }.into());
            }
            parent = Some(node);
        }
        let gather = Gather {
            base: self.len,
            rows: accepted.iter().map(|node| self.len + node).collect(),
        };
        self.len += accepted.len() as u32;
        self.computed = 0;
        self.nodes.clear();
        Ok(gather)
    }
}

impl Bookkeeping for Tree {
    fn plan(&self, positions: &[i32], plan: &mut StepPlan) -> Result<(), KvError> {
        self.check(positions)?;
        let tokens = positions.len() as u32;
        plan.reset(tokens, &self.classes);
        let StepPlan {
            classes, scratch, ..
        } = plan;
        for (class, window) in classes.iter_mut().zip(&self.classes.windows) {
            self.plan_class(*window, tokens, class, scratch);
        }
        Ok(())
    }

    fn commit(&mut self, plan: &StepPlan) {
        self.rings.wrote(self.end(plan.tokens));
        if self.nodes.is_empty() {
            self.len += plan.tokens;
        } else {
            self.computed = self.candidates();
        }
    }

    /// A failed forward takes its frontier with it; candidates computed before stay.
    fn abort(&mut self, plan: Option<&StepPlan>) {
        // The failed step may have written its rows, over the oldest ones of a ring.
        if let Some(plan) = plan {
            self.rings.wrote(self.end(plan.tokens));
        }
        self.nodes.truncate(self.computed as usize);
    }
}
