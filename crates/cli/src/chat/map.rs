//! `/cache`: a map of the pool's cells with their branches and the free cells between them.

use super::conversation::Conversation;
use crate::output;
use anyhow::Result;
use std::fmt::Write;

/// Characters in a line of the map.
const WIDTH: usize = 64;
/// Maximum number of lines; in larger pools a character stands for several cells.
const LINES: usize = 16;

/// The map with a line for every branch.
pub(super) fn draw(conversation: &Conversation<'_>) -> Result<String> {
    let cells = conversation.cells();
    let (branches, current) = conversation.branches();
    let holders = cells.ref_counts()?;
    // Per cell: the index of its only branch.
    let mut only = vec![None; holders.len()];
    let mut text = String::new();
    for (index, branch) in branches.iter().enumerate() {
        let runs = cells.runs(branch.id)?;
        for cell in runs.iter().flat_map(|run| run.cells()) {
            only[cell as usize] = Some(index);
        }
        let tokens: u32 = runs.iter().map(|run| run.len).sum();
        let shared = runs
            .iter()
            .flat_map(|run| run.cells())
            .filter(|c| holders[*c as usize] > 1)
            .count();
        let mark = if index == current { '*' } else { ' ' };
        writeln!(
            text,
            "{mark} {} {:<12} {tokens:>6} tokens in {}, {shared} shared",
            letter(index),
            branch.name,
            output::count(runs.len(), "run")
        )?;
    }
    let per_character = holders.len().div_ceil(WIDTH * LINES).max(1);
    let characters: Vec<char> = holders
        .chunks(per_character)
        .zip(only.chunks(per_character))
        .map(|(holders, only)| character(holders, only))
        .collect();
    for (line, characters) in characters.chunks(WIDTH).enumerate() {
        let first = line * WIDTH * per_character;
        writeln!(text, "{first:>7} {}", characters.iter().collect::<String>())?;
    }
    let holes = holders.iter().filter(|n| **n == 0).count();
    let scale = if per_character > 1 {
        format!("; a character is {per_character} cells")
    } else {
        String::new()
    };
    write!(
        text,
        "{} of {} cells in use, window {}, holes {holes}, KV {} (#: shared, .: free{scale})",
        cells.cells_used()?,
        cells.capacity()?,
        holders.len(),
        output::bytes(cells.memory()?.kv as u64),
    )?;
    Ok(text)
}

/// The letter of a branch in the map.
fn letter(index: usize) -> char {
    let letters = ('a'..='z').chain('A'..='Z').chain('0'..='9');
    letters.chain(['+', '-']).nth(index).unwrap_or('?')
}

/// One character for some cells: shared wins over owned, owned over free.
fn character(holders: &[u16], only: &[Option<usize>]) -> char {
    if holders.iter().any(|n| *n > 1) {
        return '#';
    }
    only.iter()
        .flatten()
        .next()
        .map_or('.', |index| letter(*index))
}
