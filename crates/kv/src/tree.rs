//! `Tree`: committed tokens followed by a tree of candidates, for speculative decoding.

use crate::candidate_tree::Node;
use crate::contiguous::check_only_sequence;
use crate::plan::{LayerClasses, LayerPlan};
use crate::ring::RingState;
use crate::step::{Role, StepToken};
use crate::window::{LayerWindow, seen};
use crate::{
    Cache, CacheConfig, CacheManager, CellRun, GatherPlan, KvError, KvErrorKind, PrefixCells,
    Prefixed, Restorable, SavedPositions, SeqId, SequenceRows, Step, StepPlan, TreeCache,
};

/// A cache of one sequence whose continuations are evaluated as a tree of candidates.
///
/// The committed tokens are in the cells before `len`; candidate `i` is in cell `len + i`. A candidate attends to the
/// committed tokens, its ancestors and itself. Siblings have the same position and do not attend to each other. Without
/// candidates, the cache supports prefill and plain decode. A ring stores the row of cell `c` at `c mod slots`, so
/// there can be at most as many candidates as tokens in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    classes: LayerClasses,
    rings: RingState,
    capacity: u32,
    len: u32,
    nodes: Vec<Node>,
    /// Candidates that a forward has computed; the later ones are the tokens of the next forward.
    computed: u32,
}

impl Tree {
    /// An empty cache.
    pub fn new(config: &CacheConfig) -> Tree {
        Tree::on(config, &PrefixCells::default())
    }

    /// A cache whose first tokens are a shared, read-only prefix, which may be empty.
    fn on(config: &CacheConfig, prefix: &PrefixCells) -> Tree {
        let classes = LayerClasses::new(&config.layers);
        Tree {
            rings: RingState::new(prefix, config, &classes),
            classes,
            capacity: config.capacity,
            len: prefix.len(),
            nodes: vec![],
            computed: 0,
        }
    }

    /// Candidates proposed since the last commit.
    pub fn candidates(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// The position of a candidate; `None` if there is no such candidate.
    pub fn position(&self, node: u32) -> Option<u32> {
        self.nodes.get(node as usize).map(|n| self.len + n.depth)
    }

    /// The shortest length that `rewind` accepts.
    pub fn rewind_floor(&self) -> u32 {
        self.rings.floor(&self.classes)
    }

    fn frontier(&self) -> usize {
        self.nodes.len() - self.computed as usize
    }

    fn check_no_candidates(&self) -> Result<(), KvError> {
        let candidates = self.candidates();
        match candidates {
            0 => Ok(()),
            _ => Err(KvErrorKind::TreeActive { candidates }.into()),
        }
    }

    /// Returns an error if the tokens do not fit or do not continue the committed tokens.
    fn check_next(&self, tokens: &[StepToken]) -> Result<(), KvError> {
        self.check_no_candidates()?;
        self.check_room(tokens.len())?;
        for (index, (token, expected)) in tokens.iter().zip(self.len..).enumerate() {
            token.check_position(index, expected)?;
        }
        Ok(())
    }

    /// Returns an error if the tokens do not fit after the computed candidates.
    fn check_room(&self, tokens: usize) -> Result<(), KvError> {
        let needed = u64::from(self.len) + u64::from(self.computed) + tokens as u64;
        if needed > u64::from(self.capacity) {
            return Err(KvErrorKind::Full {
                needed,
                capacity: self.capacity,
            }
            .into());
        }
        self.rings.check(self.computed as usize + tokens)
    }

    /// Fills `nodes` with the computed candidates and those of a step.
    fn append_candidates(
        &self,
        tokens: &[StepToken],
        nodes: &mut Vec<Node>,
    ) -> Result<(), KvError> {
        self.check_room(tokens.len())?;
        nodes.clear();
        nodes.extend_from_slice(&self.nodes[..self.computed as usize]);
        for (index, token) in tokens.iter().enumerate() {
            let Role::Candidate { parent } = token.role else {
                return Err(KvErrorKind::MixedStep { index }.into());
            };
            let node = Node::behind(nodes, parent)?;
            token.check_position(index, self.len + node.depth)?;
            nodes.push(node);
        }
        Ok(())
    }

    fn plan_next(&self, window: Option<LayerWindow>, tokens: u32, plan: &mut LayerPlan) {
        let ring = self.rings.layer_map(window);
        let end = self.len + tokens;
        plan.cells = ring.cells(end);
        let list = plan.visible.open_list();
        ring.seen_runs(window, self.len, end)
            .for_each(|run| plan.visible.push_run(run));
        for position in self.len..end {
            plan.visible.push_query(list, seen(window, position));
            plan.writes.push(ring.cell(position));
        }
    }

    fn plan_candidates(
        &self,
        window: Option<LayerWindow>,
        nodes: &[Node],
        plan: &mut LayerPlan,
        chain: &mut Vec<u64>,
    ) {
        let ring = self.rings.layer_map(window);
        plan.cells = ring.cells(self.len + nodes.len() as u32);
        for node in self.computed..nodes.len() as u32 {
            chain.clear();
            let mut at = Some(node);
            while let Some(ancestor) = at {
                chain.push(u64::from(ancestor));
                at = nodes[ancestor as usize].parent;
            }
            let list = plan.visible.open_list();
            ring.seen_runs(window, self.len, self.len)
                .for_each(|run| plan.visible.push_run(run));
            for (position, ancestor) in (self.len..).zip(chain.iter().rev()) {
                let cell = ring.cell(self.len + *ancestor as u32);
                let len = 1;
                plan.visible.push_run(CellRun {
                    position,
                    cell,
                    len,
                });
            }
            let position = self.len + nodes[node as usize].depth;
            plan.visible.push_query(list, seen(window, position));
            plan.writes.push(ring.cell(self.len + node));
        }
    }

    /// One past the last cell that a planned step writes.
    fn end(&self, plan: &StepPlan) -> u32 {
        self.len + self.computed + plan.step.real_len() as u32
    }
}

impl Prefixed for Tree {
    const KIND: &'static str = "tree";

    fn after_prefix(config: &CacheConfig, prefix: &PrefixCells) -> Result<Tree, KvError> {
        let cache = Tree::on(config, prefix);
        cache.classes.check_no_states(Self::KIND)?;
        Ok(cache)
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
        (self.len, self.computed) = (self.rings.base(), 0);
        self.nodes.clear();
        self.rings.clear();
    }

    fn rewind(&mut self, len: u32) -> Result<(), KvError> {
        self.check_no_candidates()?;
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

/// Without candidates.
impl Restorable for Tree {
    fn sequence_rows(&self, seq: SeqId) -> Result<SequenceRows, KvError> {
        check_only_sequence(seq)?;
        self.check_no_candidates()?;
        Ok(self.rings.held(self.len, &self.classes))
    }

    fn plan_restore(
        &self,
        seq: SeqId,
        len: u32,
        saved: SavedPositions<'_>,
    ) -> Result<(Tree, SequenceRows), KvError> {
        check_only_sequence(seq)?;
        self.check_no_candidates()?;
        let mut after = self.clone();
        after
            .rings
            .restore(len, self.capacity, saved.first, &self.classes)?;
        after.len = len;
        let held = after.sequence_rows(seq)?;
        Ok((after, held))
    }

    fn forget(&mut self, _: SeqId) {
        self.clear();
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
        self.check_room(parents.len())?;
        for &parent in parents {
            match Node::behind(&self.nodes, parent) {
                Ok(node) => self.nodes.push(node),
                Err(error) => {
                    self.nodes.truncate(self.computed as usize);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn commit_path(&mut self, accepted: &[u32]) -> Result<GatherPlan, KvError> {
        // The parents of declared candidates are among those that a commit removes.
        if self.frontier() > 0 && self.computed > 0 {
            return Err(KvErrorKind::StepPending.into());
        }
        let mut parent = None;
        for &node in accepted {
            let known = self.nodes[..self.computed as usize].get(node as usize);
            if known.is_none_or(|n| n.parent != parent) {
                return Err(KvErrorKind::NotAChain { node, parent }.into());
            }
            parent = Some(node);
        }
        let first = self.len - self.rings.base();
        let gather = GatherPlan {
            base: first,
            rows: accepted.iter().map(|node| first + node).collect(),
        };
        if self.computed > 0 {
            self.len += accepted.len() as u32;
            self.computed = 0;
            self.nodes.clear();
        }
        Ok(gather)
    }
}

/// Whether the tokens of a step are candidates.
fn has_candidates(tokens: &[StepToken]) -> bool {
    let first = tokens.first();
    first.is_some_and(|token| matches!(token.role, Role::Candidate { .. }))
}

impl CacheManager for Tree {
    fn declared(&self, positions: &[i32], step: &mut Step) -> Result<(), KvError> {
        step.at(positions);
        if self.frontier() == 0 {
            return Ok(());
        }
        let (declared, found) = (self.frontier(), positions.len());
        if declared != found {
            return Err(KvErrorKind::TokenCount { declared, found }.into());
        }
        let proposed = &self.nodes[self.computed as usize..];
        for (token, node) in step.tokens_mut().iter_mut().zip(proposed) {
            let parent = node.parent;
            token.role = Role::Candidate { parent };
        }
        Ok(())
    }

    fn is_declared(&self) -> bool {
        self.frontier() > 0
    }

    fn plan(&self, step: &Step, plan: &mut StepPlan) -> Result<(), KvError> {
        self.classes.check_no_states("tree")?;
        self.classes.check_no_sinks("held by a tree cache")?;
        let tokens = step.real()?;
        let mut nodes = std::mem::take(&mut plan.nodes);
        let checked = match has_candidates(tokens) {
            true => self.append_candidates(tokens, &mut nodes),
            false => crate::step::no_candidates(tokens).and_then(|()| self.check_next(tokens)),
        };
        if checked.is_ok() {
            plan.reset(step, &self.classes);
            let StepPlan {
                classes, scratch, ..
            } = plan;
            for (class, window) in classes.iter_mut().zip(&self.classes.windows) {
                class.visible.clear();
                class.writes.clear();
                match has_candidates(tokens) {
                    true => self.plan_candidates(*window, &nodes, class, scratch),
                    false => self.plan_next(*window, tokens.len() as u32, class),
                }
                (tokens.len()..step.len()).for_each(|_| class.push_padding());
            }
        }
        plan.nodes = nodes;
        checked
    }

    fn commit(&mut self, plan: &StepPlan) {
        self.rings.mark_written(self.end(plan));
        let tokens = plan.step.tokens();
        if has_candidates(tokens) {
            self.nodes.clone_from(&plan.nodes);
            self.computed = self.candidates();
        } else {
            self.len += plan.step.real_len() as u32;
        }
    }

    /// Removes the candidates of the failed forward; candidates computed earlier stay.
    fn abort(&mut self, plan: Option<&StepPlan>) {
        // The failed step may have overwritten the oldest rows of the rings.
        if let Some(plan) = plan {
            self.rings.mark_written(self.end(plan));
        }
        self.nodes.truncate(self.computed as usize);
    }
}
