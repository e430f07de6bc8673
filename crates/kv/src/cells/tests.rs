use super::*;
use crate::LayerConfig;

fn pool(capacity: u32) -> Cells {
    let layer = LayerConfig {
        kv_heads: 1,
        key_dim: 4,
        value_dim: 4,
        window: None,
    };
    Cells::new(&CacheConfig::uniform(capacity, 1, layer))
}

fn step(cells: &mut Cells, seq: SeqId, tokens: u32) {
    let start = cells.seq_next(seq).unwrap().unwrap_or(0) as i32;
    let positions: Vec<i32> = (start..start + tokens as i32).collect();
    let mut plan = StepPlan::default();
    cells.begin_step(&vec![seq; tokens as usize]).unwrap();
    cells.plan(&positions, &mut plan).unwrap();
    cells.commit(&plan);
}

#[test]
fn removing_nothing_leaves_the_runs_whole() {
    let mut cells = pool(16);
    step(&mut cells, 0, 6);
    let before = cells.clone();
    #[expect(clippy::reversed_empty_ranges, reason = "callers compute ranges")]
    for range in [3..3, 5..2, 6..9] {
        cells.seq_rm(0, range).unwrap();
        assert_eq!(cells, before);
    }
}
