//! The encoding of a step's plan for the kernels of ops with memory.

use bytemuck::{Pod, Zeroable};
use kv::{AttentionSpans, CellRun, LayerPlan, StateSource};

/// Positions of a part, as `PART` in the kernels.
pub(crate) const PART: u32 = 256;
/// The most queries of an item, as `TILE` in the kernels. Steps of fewer tokens have one query for each item.
pub(crate) const TILE: usize = 16;
/// The most partial results of a step. A step with more parts runs each query's parts one after the other.
pub(crate) const SLOTS: usize = 1024;
/// Words of a class's header: offsets of writes and items, the number of items, offsets of runs and of ranges.
const HEADER: usize = 8;
/// Sources of states that are no cells, as in the kernels.
const PREVIOUS_STATE: u32 = u32::MAX - 1;
const ZERO_STATE: u32 = u32::MAX;

/// The work of one block of threads: some parts of what queries with one run list see.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
struct Item {
    query: i32,
    queries: i32,
    first_run: i32,
    runs: i32,
    begin: i32,
    end: i32,
    slot: i32,
    part: i32,
}

impl Item {
    fn parts(&self) -> usize {
        parts(self.begin as u32, self.end as u32)
    }
}

/// Consecutive queries with one run list, at most `most` of them, with the positions that any of them sees.
fn tiles(visible: &AttentionSpans, most: usize) -> Vec<Item> {
    let queries = visible.queries();
    let mut tiles: Vec<Item> = Vec::new();
    let mut list = None;
    for (query, view) in queries.iter().enumerate() {
        let (begin, end) = (view.positions.start as i32, view.positions.end as i32);
        let sees = begin < end;
        match tiles.last_mut() {
            Some(tile) if sees && list == Some(view.list) && (tile.queries as usize) < most => {
                tile.queries += 1;
                (tile.begin, tile.end) = (tile.begin.min(begin), tile.end.max(end));
            }
            // Padding sees nothing, and its result is zero.
            _ => tiles.push(Item {
                query: query as i32,
                queries: 1,
                begin: if sees { begin } else { 0 },
                end: if sees { end } else { 0 },
                slot: -1,
                ..Item::default()
            }),
        }
        list = sees.then_some(view.list);
    }
    tiles
}

/// Appends the plan of a class of layers to the words of a step and returns the offset of its header. Offsets count
/// words from the start of `words`. If `tiled`, items of steps of many tokens have several queries.
pub(crate) fn encode(plan: &LayerPlan, tiled: bool, words: &mut Vec<u32>) -> u32 {
    // Headers and items are read in vectors of four words.
    words.resize(words.len().next_multiple_of(4), 0);
    let header = words.len();
    words.resize(header + HEADER, 0);
    words[header] = words.len() as u32;
    words.extend(&plan.writes);
    let visible = &plan.visible;
    let queries = visible.queries();
    words[header + 4] = words.len() as u32;
    words.extend(
        queries
            .iter()
            .flat_map(|view| [view.positions.start, view.positions.end]),
    );
    words.resize(words.len().next_multiple_of(4), 0);
    let most = if tiled && queries.len() >= TILE {
        TILE
    } else {
        1
    };
    let tiles = tiles(visible, most);
    let total: usize = tiles
        .iter()
        .map(|tile| tile.parts() * tile.queries as usize)
        .sum();
    let splits = total <= SLOTS;
    words[header + 1] = words.len() as u32;
    let (mut runs, mut lists): (Vec<CellRun>, Vec<Option<usize>>) = (vec![], vec![]);
    let (mut count, mut slot) = (0, 0);
    // The last tiles see the most: they are started first.
    for mut item in tiles.into_iter().rev() {
        let parts = item.parts();
        if parts == 0 {
            words.extend_from_slice(bytemuck::cast_slice(&[item]));
            count += 1;
            continue;
        }
        let id = queries[item.query as usize].list;
        let of_list = visible.run_list(id);
        if lists.len() <= id as usize {
            lists.resize(id as usize + 1, None);
        }
        let at = *lists[id as usize].get_or_insert_with(|| {
            runs.extend_from_slice(of_list);
            runs.len() - of_list.len()
        });
        let mut push = |mut item: Item| {
            let first = of_list.partition_point(|run| run.positions().end <= item.begin as u32);
            let last = of_list.partition_point(|run| run.position < item.end as u32);
            (item.first_run, item.runs) = ((at + first) as i32, last.saturating_sub(first) as i32);
            words.extend_from_slice(bytemuck::cast_slice(&[item]));
            count += 1;
        };
        if parts == 1 || !splits {
            push(item);
            continue;
        }
        let (begin, end) = (item.begin as u32, item.end as u32);
        let start = begin / PART * PART;
        for part in 0..parts as u32 {
            item.begin = (start + part * PART).max(begin) as i32;
            item.end = (start + (part + 1) * PART).min(end) as i32;
            (item.slot, item.part) = (slot, part as i32 | (parts as i32) << 16);
            push(item);
        }
        slot += parts as i32 * item.queries;
    }
    words[header + 2] = count;
    words[header + 3] = words.len() as u32;
    words.extend(
        runs.iter()
            .flat_map(|run| [run.position, run.cell, run.len]),
    );
    header as u32
}

/// Appends the plan of the layers with states, as [`encode`] that of layers with rows: offsets of writes and sources, a word for each
/// token.
pub(crate) fn encode_states(plan: &LayerPlan, words: &mut Vec<u32>) -> u32 {
    words.resize(words.len().next_multiple_of(4), 0);
    let header = words.len();
    words.resize(header + HEADER, 0);
    words[header] = words.len() as u32;
    words.extend(&plan.writes);
    words[header + 1] = words.len() as u32;
    words.extend(plan.sources.iter().map(|source| match *source {
        StateSource::Zero => ZERO_STATE,
        StateSource::Previous => PREVIOUS_STATE,
        StateSource::Cell(cell) => cell,
    }));
    header as u32
}

/// Parts of a range of positions.
fn parts(begin: u32, end: u32) -> usize {
    match begin < end {
        true => (end.div_ceil(PART) - begin / PART) as usize,
        false => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kv::{CacheConfig, CacheManager, Cells, LayerConfig, SeqCache, Step, StepPlan};

    /// The cells that every query sees, decoded from the encoded plan in the order in which the kernels visit them.
    fn decoded(words: &[u32], header: u32, queries: usize) -> Vec<Vec<u32>> {
        let [_, items, count, runs, ranges, ..] = words[header as usize..][..HEADER] else {
            unreachable!()
        };
        let mut seen = vec![vec![]; queries];
        let mut slots = std::collections::BTreeSet::new();
        // The kernels merge an item's parts in order; items of different queries come in any order.
        let len = size_of::<Item>() / 4;
        for item in words[items as usize..][..count as usize * len].chunks(len) {
            let [
                query,
                item_queries,
                first_run,
                run_count,
                begin,
                end,
                slot,
                part,
            ] = item[..]
            else {
                unreachable!()
            };
            let list: Vec<CellRun> = words[(runs + first_run * 3) as usize..]
                [..run_count as usize * 3]
                .chunks(3)
                .map(|run| CellRun {
                    position: run[0],
                    cell: run[1],
                    len: run[2],
                })
                .collect();
            for q in query..query + item_queries {
                if slot != u32::MAX {
                    let slot = slot + (part & 0xffff) * item_queries + q - query;
                    assert!(slots.insert(slot), "slot {slot} twice");
                    assert!(begin / PART == (end - 1) / PART, "an item of one part");
                }
                let range = (ranges + 2 * q) as usize;
                for position in begin..end {
                    let run = list.iter().find(|run| run.positions().contains(&position));
                    let sees = (words[range]..words[range + 1]).contains(&position);
                    let run = run.filter(|_| sees);
                    seen[q as usize].extend(run.map(|run| run.cell + position - run.position));
                }
            }
        }
        assert!(slots.len() <= SLOTS);
        seen
    }

    fn check(plan: &LayerPlan, tiled: bool) {
        let mut words = vec![7; 3];
        let header = encode(plan, tiled, &mut words);
        let queries = plan.visible.queries().len();
        let found = decoded(&words, header, queries);
        for (query, cells) in found.iter().enumerate() {
            let expect: Vec<u32> = plan
                .visible
                .runs(query)
                .flat_map(|run| run.cells())
                .collect();
            assert_eq!(*cells, expect, "query {query}");
        }
        let writes = words[header as usize] as usize;
        assert_eq!(words[writes..][..plan.writes.len()], plan.writes);
    }

    #[test]
    fn encoded_states_give_sources_and_writes() {
        let layers = vec![LayerConfig::state(2, 8)];
        let config = CacheConfig::new(100, layers);
        let mut cells = Cells::new(&config);
        let mut plan = StepPlan::default();
        let mut step = Step::default();
        step.extend(0, 0, &[1; 3]);
        step.extend(1, 0, &[1; 2]);
        step.pad_to(7, 0);
        let mut next = Step::default();
        next.extend(1, 2, &[1]);
        for step in [step, next] {
            cells.plan(&step, &mut plan).unwrap();
            cells.commit(&plan);
            let plan = plan.layer(0);
            let mut words = vec![7; 3];
            let header = encode_states(plan, &mut words) as usize;
            let [writes, sources, ..] = words[header..][..HEADER] else {
                unreachable!()
            };
            assert_eq!(words[writes as usize..][..plan.writes.len()], plan.writes);
            let sources = &words[sources as usize..];
            assert_eq!(sources.len(), plan.writes.len());
            for (code, source) in sources.iter().zip(&plan.sources) {
                let decoded = match *code {
                    ZERO_STATE => StateSource::Zero,
                    PREVIOUS_STATE => StateSource::Previous,
                    cell => StateSource::Cell(cell),
                };
                assert_eq!(decoded, *source);
            }
        }
    }

    #[test]
    fn encoded_plans_give_the_cells_of_every_query() {
        let layer = |window| LayerConfig {
            kv_heads: 1,
            key_dim: 8,
            value_dim: 8,
            window,
            sinks: 0,
        };
        let config = CacheConfig::new(6000, vec![layer(None), layer(Some(300))]);
        let mut cells = Cells::new(&config);
        let mut plan = StepPlan::default();
        let mut run = |cells: &mut Cells, parts: &[(u32, u32, u32)], padding: usize| {
            let mut step = Step::default();
            for &(seq, at, tokens) in parts {
                step.extend(seq, at, &vec![1; tokens as usize]);
            }
            step.pad_to(step.len() + padding, 0);
            cells.plan(&step, &mut plan).unwrap();
            for layer in 0..2 {
                check(plan.layer(layer), false);
                check(plan.layer(layer), true);
            }
            cells.commit(&plan);
        };
        run(&mut cells, &[(0, 0, 700)], 0);
        run(&mut cells, &[(0, 700, 1), (1, 0, 40)], 3);
        cells.seq_cp(0, 2, 0..300).unwrap();
        for i in 0..9 {
            run(
                &mut cells,
                &[(1, 40 + i, 1), (2, 300 + i, 1), (0, 701 + i, 1)],
                1,
            );
        }
        cells.seq_rm(0, ..).unwrap();
        // With 2,500 rows every query has one item.
        run(&mut cells, &[(2, 309, 900)], 0);
        run(&mut cells, &[(3, 0, 2500)], 0);
    }
}
