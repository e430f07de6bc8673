//! The zip archive around the programs: members by name, as views into the file.

use std::collections::HashMap;
use std::io::{Cursor, Read};

use base::Bytes;
use zip::read::{ArchiveOffset, Config};
use zip::{CompressionMethod, ZipArchive};

use crate::error::ImportError;

/// Limit on the size of an inflated member. Weights are stored uncompressed.
const MAX_INFLATED: u64 = 1 << 30;

/// The members of an archive, by their path below its root folder.
pub(super) struct Archive {
    /// The root folder, which is the archive's name.
    pub(super) root: String,
    members: HashMap<String, Bytes>,
}

impl Archive {
    pub(super) fn open(bytes: &Bytes) -> Result<Archive, ImportError> {
        let damaged = |reason: String| ImportError::malformed("the zip archive", reason);
        // Example inputs are an archive inside this one: the offset must not be taken from its directory.
        let config = Config {
            archive_offset: ArchiveOffset::Known(0),
        };
        let zip = ZipArchive::with_config(config, Cursor::new(&bytes[..]));
        let mut zip = zip.map_err(|e| damaged(e.to_string()))?;
        let mut members = HashMap::new();
        let mut root = None;
        for index in 0..zip.len() {
            let member = zip
                .by_index(index)
                .map_err(|e| damaged(format!("member {index}: {e}")))?;
            if member.is_dir() {
                continue;
            }
            let name = member
                .name()
                .map_err(|e| damaged(format!("member {index}: {e}")))?;
            let name = name.into_owned();
            let wrong = |reason: &str| {
                ImportError::malformed(format!("{name:?} in the zip archive"), reason)
            };
            let data = if member.compression() == CompressionMethod::Stored {
                let range = member.data_start().and_then(|start| {
                    let start = usize::try_from(start).ok()?;
                    Some(start..start.checked_add(usize::try_from(member.size()).ok()?)?)
                });
                let data = range.and_then(|range| bytes.slice(range));
                data.ok_or_else(|| wrong("is outside the file"))?
            } else {
                let size = member.size();
                if size > MAX_INFLATED {
                    return Err(wrong("is compressed and larger than 1 GiB"));
                }
                let mut data = Vec::new();
                let read = member.take(MAX_INFLATED).read_to_end(&mut data);
                read.map_err(|e| wrong(&e.to_string()))?;
                Bytes::from(&data[..])
            };
            let (folder, inner) = name.split_once('/').unwrap_or(("", &name));
            if inner == "archive_format" {
                root = Some(folder.to_owned());
            }
            members.insert(name, data);
        }
        let root = root.ok_or_else(|| {
            damaged("has no archive_format: it is not a .pt2 file, or was written by a PyTorch older than 2.8".into())
        })?;
        let members = members.into_iter().filter_map(|(name, data)| {
            let inner = name.strip_prefix(&root)?.trim_start_matches('/');
            Some((inner.to_owned(), data))
        });
        let members = members.collect();
        Ok(Archive { root, members })
    }

    /// The member with this name.
    pub(super) fn get(&self, name: &str) -> Option<&Bytes> {
        self.members.get(name)
    }

    /// A required member.
    pub(super) fn need(&self, name: &str) -> Result<&Bytes, ImportError> {
        let missing = || ImportError::malformed(format!("{name:?}"), "is not in the archive");
        self.get(name).ok_or_else(missing)
    }

    /// A required member, parsed as JSON.
    pub(super) fn json<T: serde::de::DeserializeOwned>(
        &self,
        name: &str,
    ) -> Result<T, ImportError> {
        let bytes = self.need(name)?;
        serde_json::from_slice(bytes).map_err(|e| {
            let reason = format!("does not match schema 8: {e}");
            ImportError::malformed(format!("{name:?}"), reason)
        })
    }

    /// Names of the members of a folder, relative to it and sorted.
    pub(super) fn under(&self, folder: &str) -> Vec<&str> {
        let names = self.members.keys();
        let mut names: Vec<&str> = names.filter_map(|name| name.strip_prefix(folder)).collect();
        names.sort_unstable();
        names
    }
}
