//! `/cache type`, `kind` and `device`: the cache of a chat becomes another one, with all that it holds.

use super::Session;
use crate::device::DeviceArgs;
use crate::output;
use anyhow::{Result, bail};
use kvark::cache::{KvStorage, MigrationOptions, read_policy};
use kvark::memory::CacheKind;

/// Runs `/cache WHAT TO` and returns what it says.
pub(super) fn run(session: &mut Session<'_>, line: &str) -> Result<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut to = MigrationOptions::default();
    let mut device = session.device.clone();
    match words[..] {
        ["type", both] => {
            let storage = storage(both)?;
            (to.key_storage, to.value_storage) = (Some(storage), Some(storage));
        }
        ["type", keys, values] => {
            (to.key_storage, to.value_storage) = (Some(storage(keys)?), Some(storage(values)?));
        }
        ["policy", _, ..] => {
            let rules = line["policy".len()..].trim();
            to.policy = Some(read_policy(rules.trim_matches('"'))?);
        }
        ["kind", "cells"] => to.kind = Some(CacheKind::Cells { sequences: 1 }),
        ["kind", "contiguous"] => to.kind = Some(CacheKind::Contiguous),
        ["kind", "tree"] => to.kind = Some(CacheKind::Tree),
        ["kind", ..] => bail!("/cache kind takes cells, contiguous or tree"),
        ["device", name] => device = DeviceArgs::named(name)?,
        _ => bail!(
            "/cache takes nothing, or type and one or two storage types, policy and rules or a file of them, kind and a kind of cache, device and a device"
        ),
    }
    let conversation = &mut session.conversation;
    let (list, current) = conversation.branches();
    let changes_rows = to.key_storage.is_some() || to.policy.is_some();
    to.measure = Some(list[current].id).filter(|_| changes_rows);
    let model = conversation.model();
    let backend = device.backend()?;
    let report = conversation.cells.migrate(model, &*backend, &to)?;
    session.device = device;
    let [before, after] = report.bytes.map(|bytes| output::bytes(bytes as u64));
    let distance = report.distance.map_or(String::new(), |distance| {
        format!(
            "; the last {} differ by {:.4} in log-probability",
            output::tokens(distance.tokens),
            distance.mean_logprob
        )
    });
    let time = report.time.as_secs_f64() * 1e3;
    Ok(format!(
        "[{} moved in {time:.0} ms: KV {before} became {after}{distance}]",
        output::tokens(report.cells)
    ))
}

fn storage(name: &str) -> Result<KvStorage> {
    match KvStorage::from_name(name) {
        Some(storage) => Ok(storage),
        None => {
            let names = KvStorage::ALL.map(KvStorage::name).join(", ");
            bail!("there is no storage type {name:?}, it must be one of {names}")
        }
    }
}
