//! The encoding of a step's plan for the attention kernels.

use kv::{CellRun, LayerPlan};

/// Positions of a part, as `PART` in the kernels.
const PART: u32 = 256;
/// The most partial results of a step. A step with more parts runs each query's parts one after the other.
pub(crate) const SLOTS: usize = 1024;
/// Words of a class's header: offsets of writes and items, the number of items, offset of runs.
const HEADER: usize = 4;
/// Words of an item.
const ITEM: usize = 8;

/// The work of one block of threads: some parts of what a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Item {
    query: i32,
    first_run: i32,
    runs: i32,
    begin: i32,
    end: i32,
    slot: i32,
    part: i32,
    parts: i32,
}

/// Appends the plan of a class of layers to the words of a step and returns the offset of its header. Offsets count
/// words from the start of `words`.
pub(crate) fn encode(plan: &LayerPlan, words: &mut Vec<u32>) -> u32 {
    // Headers and items are read in vectors of four words.
    words.resize(words.len().next_multiple_of(4), 0);
    let header = words.len();
    words.resize(header + HEADER, 0);
    words[header] = words.len() as u32;
    words.extend(&plan.writes);
    words.resize(words.len().next_multiple_of(4), 0);
    let visible = &plan.visible;
    let queries = visible.queries();
    let total: usize = queries
        .iter()
        .map(|q| parts(q.positions.start, q.positions.end))
        .sum();
    let splits = total <= SLOTS;
    words[header + 1] = words.len() as u32;
    let (mut runs, mut lists): (Vec<CellRun>, Vec<Option<usize>>) = (vec![], vec![]);
    let (mut count, mut slot) = (0, 0);
    let mut push = |item: Item, words: &mut Vec<u32>| {
        let Item {
            query,
            first_run,
            runs,
            begin,
            end,
            slot,
            part,
            parts,
        } = item;
        let fields: [i32; ITEM] = [query, first_run, runs, begin, end, slot, part, parts];
        words.extend(fields.map(|field| field as u32));
        count += 1;
    };
    for (query, view) in queries.iter().enumerate() {
        let (begin, end) = (view.positions.start, view.positions.end);
        let parts = parts(begin, end);
        let list = view.list as usize;
        let mut item = Item {
            query: query as i32,
            first_run: 0,
            runs: 0,
            begin: begin as i32,
            end: end as i32,
            slot: -1,
            part: 0,
            parts: parts as i32,
        };
        if parts == 0 {
            // Padding: its result is zero.
            (item.begin, item.end) = (0, 0);
            push(item, words);
            continue;
        }
        if lists.len() <= list {
            lists.resize(list + 1, None);
        }
        let of_list = visible.run_list(view.list);
        let at = *lists[list].get_or_insert_with(|| {
            runs.extend_from_slice(of_list);
            runs.len() - of_list.len()
        });
        let within = |item: &mut Item| {
            let first = of_list.partition_point(|run| run.positions().end <= item.begin as u32);
            let last = of_list.partition_point(|run| run.position < item.end as u32);
            (item.first_run, item.runs) = ((at + first) as i32, last.saturating_sub(first) as i32);
        };
        if parts == 1 || !splits {
            within(&mut item);
            push(item, words);
            continue;
        }
        let start = begin / PART * PART;
        for part in 0..parts as u32 {
            item.begin = (start + part * PART).max(begin) as i32;
            item.end = (start + (part + 1) * PART).min(end) as i32;
            (item.slot, item.part) = (slot, part as i32);
            within(&mut item);
            push(item, words);
        }
        slot += parts as i32;
    }
    words[header + 2] = count;
    words[header + 3] = words.len() as u32;
    words.extend(
        runs.iter()
            .flat_map(|run| [run.position, run.cell, run.len]),
    );
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
    use kv::{Bookkeeping, CacheConfig, Cells, LayerConfig, SeqCache, Step, StepPlan};

    /// The cells that every query sees, decoded from the encoded plan in the order in which the kernels visit them.
    fn decoded(words: &[u32], header: u32, queries: usize) -> Vec<Vec<u32>> {
        let [_, items, count, runs] = words[header as usize..][..HEADER] else {
            unreachable!()
        };
        let mut seen = vec![vec![]; queries];
        let mut slots = std::collections::BTreeSet::new();
        for item in words[items as usize..][..count as usize * ITEM].chunks(ITEM) {
            let [query, first_run, run_count, begin, end, slot, part, _] = item[..] else {
                unreachable!()
            };
            if slot != u32::MAX {
                assert!(slots.insert(slot + part), "slot {} twice", slot + part);
                assert!(begin / PART == (end - 1) / PART, "an item of one part");
            }
            let list: Vec<CellRun> = words[(runs + first_run * 3) as usize..]
                [..run_count as usize * 3]
                .chunks(3)
                .map(|run| CellRun {
                    position: run[0],
                    cell: run[1],
                    len: run[2],
                })
                .collect();
            for position in begin..end {
                let run = list.iter().find(|run| run.positions().contains(&position));
                seen[query as usize].extend(run.map(|run| run.cell + position - run.position));
            }
        }
        assert!(slots.len() <= SLOTS);
        seen
    }

    fn check(plan: &LayerPlan) {
        let mut words = vec![7; 3];
        let header = encode(plan, &mut words);
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
    fn encoded_plans_give_the_cells_of_every_query() {
        let layer = |window| LayerConfig {
            kv_heads: 1,
            key_dim: 8,
            value_dim: 8,
            window,
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
            (0..2).for_each(|layer| check(plan.layer(layer)));
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
