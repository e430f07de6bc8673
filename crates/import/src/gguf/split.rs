//! Models that are split over several files, as llama.cpp's `gguf-split` writes them.
//!
//! Every part is a GGUF file of its own. Its keys `split.no` and `split.count` say which part it is, its name ends with
//! `-00001-of-00003.gguf`. The first part has the metadata of the model; `split.tensors.count` is the number of tensors of
//! all parts.

use std::path::{Path, PathBuf};

use base::Bytes;

use super::error::{GgufError, GgufErrorDetail};
use super::file::Gguf;
use super::metadata::Metadata;

/// Digits of the numbers in a part's name.
const DIGITS: usize = 5;

/// The name of a part of a split model, such as `model-00001-of-00003.gguf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitName {
    stem: String,
    number: usize,
    count: usize,
    extension: String,
}

impl SplitName {
    /// Parses a file name, which may have folders before it. `None` if it is not the name of a part.
    pub fn parse(name: &str) -> Option<SplitName> {
        let (rest, extension) = name.rsplit_once('.')?;
        let (rest, count) = rest.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| text.len() == DIGITS && text.bytes().all(|b| b.is_ascii_digit());
        if !extension.eq_ignore_ascii_case("gguf") || !digits(number) || !digits(count) {
            return None;
        }
        let (number, count) = (number.parse().ok()?, count.parse().ok()?);
        (1..=count).contains(&number).then(|| SplitName {
            stem: stem.to_owned(),
            number,
            count,
            extension: extension.to_owned(),
        })
    }

    /// The name before the part's number.
    pub fn stem(&self) -> &str {
        &self.stem
    }

    /// The number of this part, from 1.
    pub fn number(&self) -> usize {
        self.number
    }

    /// The number of parts.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The name of part `number`.
    pub fn part(&self, number: usize) -> String {
        let SplitName { stem, count, .. } = self;
        let extension = &self.extension;
        format!("{stem}-{number:0DIGITS$}-of-{count:0DIGITS$}.{extension}")
    }
}

/// The number of parts that a file states, 1 for a model in one file.
pub(super) fn stated_count(metadata: &Metadata) -> Result<usize, GgufError> {
    Ok(metadata.usize("split.count")?.unwrap_or(1).max(1))
}

impl Gguf {
    /// Reads a file held in `bytes` that was mapped from `path`. If it is a part of a split model, reads the other parts in
    /// its folder too.
    pub(crate) fn parse_with_parts(bytes: Bytes, path: &Path) -> Result<Gguf, GgufError> {
        let own = Gguf::parse(bytes).map_err(|e| e.in_file(path))?;
        let join = || match stated_count(&own.metadata)? {
            1 => Ok(own),
            count => join_parts(own, count, path),
        };
        join()
    }
}

/// Joins the part `own`, read from `path`, with the other parts.
fn join_parts(own: Gguf, count: usize, path: &Path) -> Result<Gguf, GgufError> {
    let here = |detail: GgufErrorDetail| GgufError::from(detail).in_file(path);
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.and_then(SplitName::parse);
    let Some(name) = name.filter(|name| name.count() == count) else {
        return Err(here(GgufErrorDetail::PartName { count }));
    };
    check_number(&own, name.number(), count).map_err(here)?;

    let own_number = name.number();
    let mut own = Some(own);
    let mut parts = (1..=count).map(|number| match own.take_if(|_| number == own_number) {
        Some(own) => Ok(own),
        None => read_part(path.with_file_name(name.part(number)), number, count),
    });
    let mut whole = parts.next().expect("a split model has parts")?;
    for part in parts {
        for tensor in part?.tensors {
            let position = whole.tensors.len();
            if whole.index.insert(tensor.name.clone(), position).is_some() {
                let name = tensor.name;
                return Err(here(GgufErrorDetail::DuplicateTensor { name }));
            }
            whole.tensors.push(tensor);
        }
    }
    whole.parts = count;
    if let Some(stated) = whole.metadata.usize("split.tensors.count")?
        && stated != whole.tensors.len()
    {
        let found = whole.tensors.len();
        return Err(here(GgufErrorDetail::PartTensors { stated, found }));
    }
    Ok(whole)
}

fn read_part(path: PathBuf, number: usize, count: usize) -> Result<Gguf, GgufError> {
    if !path.exists() {
        let detail = GgufErrorDetail::MissingPart {
            number,
            count,
            path,
        };
        return Err(detail.into());
    }
    let part = Gguf::parse(Bytes::map(&path)?).map_err(|e| e.in_file(&path))?;
    check_number(&part, number, count).map_err(|e| GgufError::from(e).in_file(&path))?;
    Ok(part)
}

/// Checks that a file is the part that its name states.
fn check_number(part: &Gguf, number: usize, count: usize) -> Result<(), GgufErrorDetail> {
    let stated = |key| part.metadata.usize(key).ok().flatten();
    let found = (stated("split.no"), stated("split.count"));
    match found == (Some(number - 1), Some(count)) {
        true => Ok(()),
        false => Err(GgufErrorDetail::WrongPart { number, count }),
    }
}
