//! `NodeProfile`: measured time and work of nodes.

use std::ops::AddAssign;
use std::time::Duration;

/// Time, bytes read and multiply-accumulates of all nodes with one op and label, summed over the measured steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeProfile {
    /// Name of the op.
    pub op: &'static str,
    /// Name of the nodes, with `*` in place of the layer number.
    pub label: String,
    /// Number of node runs.
    pub runs: u64,
    /// Total time.
    pub time: Duration,
    /// Bytes of weights and cached rows read, each counted once per step.
    pub bytes: u64,
    /// Multiply-accumulate operations.
    pub macs: u64,
    /// Whether the multiply-accumulates are f32; otherwise they are integer products of packed weights.
    pub is_f32: bool,
    /// Uses of experts of which a part is in memory.
    pub experts: ExpertUse,
}

/// How often experts were in memory when rows chose them, if only some of them are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpertUse {
    /// Experts that were in memory.
    pub hits: u64,
    /// Experts that were read from their file.
    pub misses: u64,
    /// Misses that were prefetched while the layer before ran.
    pub foreseen: u64,
}

impl AddAssign for ExpertUse {
    fn add_assign(&mut self, other: ExpertUse) {
        self.hits += other.hits;
        self.misses += other.misses;
        self.foreseen += other.foreseen;
    }
}

/// The measurements of an executable, one for each op and label.
#[derive(Clone, Debug, Default)]
pub struct NodeProfiles(Vec<NodeProfile>);

impl NodeProfiles {
    /// Adds a measurement to that of its op and label.
    pub fn add(&mut self, new: NodeProfile) {
        let same = |known: &&mut NodeProfile| known.op == new.op && known.label == new.label;
        let Some(known) = self.0.iter_mut().find(same) else {
            self.0.push(new);
            return;
        };
        known.runs += new.runs;
        known.time += new.time;
        known.bytes += new.bytes;
        known.macs += new.macs;
        known.experts += new.experts;
    }

    /// All of them, in the order in which they came first.
    pub fn all(&self) -> &[NodeProfile] {
        &self.0
    }
}
