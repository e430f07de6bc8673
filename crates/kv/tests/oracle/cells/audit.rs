//! Comparison of the cache with the facts after every operation.

use super::*;

impl History {
    /// Every sequence holds what the facts say, in rows that have its stamps, and the counts agree.
    pub(super) fn audit(&self) {
        let mut holders = vec![0u16; self.config.capacity as usize];
        assert!(self.cache.retained().eq(self.retained.iter().copied()));
        for (seq, held) in (0..).zip(&self.held) {
            if self.known_owner(seq).is_err() {
                assert!(held.is_empty(), "prefix {seq} was released");
                continue;
            }
            let runs = self.cache.runs(seq).unwrap();
            for pair in runs.windows(2) {
                assert!(pair[0].position + pair[0].len <= pair[1].position);
                assert!(!pair[0].continues_with(&pair[1]), "runs that could be one");
            }
            assert_eq!(self.cache.seq_len(seq).unwrap() as usize, held.len());
            let next = held.last_key_value().map(|(position, _)| position + 1);
            assert_eq!(self.cache.seq_next(seq).unwrap(), next);
            for (layer, rows) in self.bytes.rows.iter().enumerate() {
                if let Some(window) = self.kept.iter().find(|w| w.layer == layer) {
                    self.audit_window(window, seq);
                    continue;
                }
                let placed = runs.iter().flat_map(|run| run.positions().zip(run.cells()));
                let placed = placed.map(|(position, cell)| (position, rows[cell as usize]));
                assert!(
                    placed.eq(held.iter().map(|(p, s)| (*p, *s))),
                    "sequence {seq} holds {held:?}, not {runs:?}"
                );
            }
            for cell in runs.iter().flat_map(CellRun::cells) {
                holders[cell as usize] += 1;
            }
        }
        let trees = (0..).zip(&self.candidates);
        for (seq, tree) in trees.filter(|(_, tree)| !tree.is_empty()) {
            assert_eq!(self.cache.candidates(seq) as usize, tree.len());
            for (layer, rows) in self.bytes.rows.iter().enumerate() {
                let cells = self.cache.candidate_cells(layer, seq).unwrap().iter();
                let stamps = cells.map(|cell| rows[*cell as usize]);
                assert!(stamps.eq(tree.iter().map(|c| c.stamp)));
            }
            let flat = (0..self.bytes.rows.len())
                .find(|layer| self.kept.iter().all(|window| window.layer != *layer));
            match flat {
                Some(layer) => {
                    for cell in self.cache.candidate_cells(layer, seq).unwrap() {
                        holders[*cell as usize] += 1;
                    }
                }
                // Every layer is a ring; the cells of all positions belong to no layer.
                None => return,
            }
        }
        let used = holders.iter().filter(|n| **n > 0).count() as u32;
        let high_water = holders.iter().rposition(|n| *n > 0).map_or(0, |c| c + 1);
        assert_eq!(self.live().len() as u32, used);
        assert_eq!(self.cache.len(), used);
        assert_eq!(self.cache.ref_counts(), &holders[..high_water]);
        assert_eq!(self.cache.high_water() as usize, high_water);
        let live = (0..MAX_SEQUENCES).zip(&self.held);
        let live = live.filter(|(_, held)| !held.is_empty());
        assert!(self.cache.live().eq(live.map(|(seq, _)| seq)));
        let room = self.config.capacity - used;
        assert!(self.cache.can_extend(room) && !self.cache.can_extend(room + 1));
    }

    /// A sequence keeps in a layer with a window what it should, in rows that have its stamps.
    pub(super) fn audit_window(&self, window: &Window, seq: SeqId) {
        let rows = &self.bytes.rows[window.layer];
        let runs = self.cache.layer_runs(window.layer, seq).unwrap();
        let kept = &window.positions[seq as usize];
        assert!(kept.len() <= (window.slots + window.sinks) as usize);
        let placed = runs.iter().flat_map(|run| run.positions().zip(run.cells()));
        let placed = placed.map(|(position, cell)| (position, rows[cell as usize]));
        let held = &self.held[seq as usize];
        let expected = kept.iter().map(|position| (*position, held[position]));
        assert!(
            placed.eq(expected),
            "sequence {seq} keeps {kept:?}, not {runs:?}"
        );
    }
}
