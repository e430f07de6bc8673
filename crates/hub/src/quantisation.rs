//! Quantisations in file names, and the choice among the files of a repository.

use crate::error::{HubError, HubErrorKind};
use crate::repository::RepositoryFile;
use import::gguf::SplitName;

/// The quantisations that are tried in this order if none is asked for.
const PREFERRED: [&str; 6] = ["Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "Q4_K_L", "Q8_0"];

/// The quantisation that a file name states, in upper case: `Q4_K_M` of `model.q4_k_m.gguf`.
pub fn quantisation_of_name(name: &str) -> Option<String> {
    let stem = match SplitName::parse(name) {
        Some(split) => split.stem().to_owned(),
        None => name
            .rsplit_once('.')
            .map_or(name, |(stem, _)| stem)
            .to_owned(),
    };
    let upper = stem.to_ascii_uppercase();
    let words = upper.split(['-', '.', '/', ' ']);
    // `model_q4_k_m` has its quantisation after an underscore.
    let of_word = |word: &str| {
        let starts = word.match_indices('_').map(|(at, _)| at + 1);
        std::iter::once(0)
            .chain(starts)
            .map(|at| &word[at..])
            .find(|rest| is_quantisation(rest))
            .map(str::to_owned)
    };
    words.filter_map(of_word).next_back()
}

/// Whether a word in upper case is the name of a quantisation.
fn is_quantisation(word: &str) -> bool {
    if ["F16", "F32", "BF16", "FP16", "FP32"].contains(&word) || word.starts_with("MXFP4") {
        return true;
    }
    let mut parts = word.split('_');
    let first = parts.next().unwrap_or_default();
    let digit = first.trim_start_matches(['I', 'T']).strip_prefix('Q');
    let digit = digit.is_some_and(|d| d.len() == 1 && d.bytes().all(|b| b.is_ascii_digit()));
    let known = ["0", "1", "K", "S", "M", "L", "XS", "XXS", "NL", "XL", "P"];
    digit && parts.all(|part| known.contains(&part))
}

/// Whether a file name has this quantisation, or is this file. Case does not matter.
pub(crate) fn has_quantisation(name: &str, asked: &str) -> bool {
    let (name, asked) = (name.to_ascii_lowercase(), asked.to_ascii_lowercase());
    if asked.ends_with(".gguf") {
        return name == asked || name.ends_with(&format!("/{asked}"));
    }
    let ends =
        |c: Option<char>, also: &str| c.is_none_or(|c| "-./ ".contains(c) || also.contains(c));
    name.match_indices(&asked).any(|(at, _)| {
        let before = name[..at].chars().next_back();
        let after = name[at + asked.len()..].chars().next();
        ends(before, "_") && ends(after, "")
    })
}

/// Whether a file of a repository is a model: a GGUF file that is no projector of images and no importance matrix.
fn is_model(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let file = name.rsplit('/').next().unwrap_or_default();
    file.ends_with(".gguf") && !file.contains("mmproj") && !file.contains("imatrix")
}

/// The name that asks for the files of a folder instead of a GGUF file.
pub(crate) const FOLDER: &str = "safetensors";
/// The files of a folder that stand for its weights, in the order in which they are looked for.
const WEIGHTS: [&str; 2] = ["model.safetensors.index.json", "model.safetensors"];
/// Files of a folder beside its weights.
const SIDECARS: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "modules.json",
];

/// The files of a repository that is a folder with a configuration and safetensors, that of the weights first; `None` if it is none.
fn folder(files: &[RepositoryFile]) -> Option<Vec<RepositoryFile>> {
    let find = |name: &str| files.iter().find(|file| file.path == name);
    find("config.json")?;
    let first = WEIGHTS.iter().find_map(|name| find(name))?;
    let shard = |path: &str| path.starts_with("model-") && path.ends_with(".safetensors");
    let sharded = first.path == WEIGHTS[0];
    let rest = files.iter().filter(|file| {
        let path = &*file.path;
        // How an encoder pools is in a folder of its own.
        let pooling = path.ends_with("_Pooling/config.json");
        SIDECARS.contains(&path) || pooling || (sharded && shard(path) && !path.contains('/'))
    });
    Some(std::iter::once(first).chain(rest).cloned().collect())
}

/// Whether the file of a chosen model's weights is that of a folder.
pub(crate) fn is_folder(first: &RepositoryFile) -> bool {
    WEIGHTS.contains(&&*first.path)
}

/// The files of the model that is asked for, or of the default one: several if it is split or a folder. Repositories without GGUF
/// files are folders.
pub(crate) fn choose(
    repository: &str,
    files: &[RepositoryFile],
    asked: Option<&str>,
) -> Result<Vec<RepositoryFile>, HubError> {
    let mut models: Vec<&RepositoryFile> = files.iter().filter(|f| is_model(&f.path)).collect();
    models.sort_by(|a, b| a.path.cmp(&b.path));
    let wants_folder = match asked {
        Some(asked) => asked.eq_ignore_ascii_case(FOLDER),
        None => models.is_empty(),
    };
    if let Some(files) = folder(files).filter(|_| wants_folder) {
        return Ok(files);
    }
    let find = |quantisation: &str| {
        let mut found = models.iter();
        found.find(|file| has_quantisation(&file.path, quantisation))
    };
    let chosen = match asked {
        Some(asked) => find(asked).copied(),
        None => {
            let preferred = PREFERRED.iter().find_map(|q| find(q));
            preferred.or_else(|| models.first()).copied()
        }
    };
    let Some(chosen) = chosen else {
        let repository = format!("hf:{repository}");
        let Some(asked) = asked.filter(|_| !models.is_empty()) else {
            return Err(HubErrorKind::NoGguf { repository }.into());
        };
        return Err(HubErrorKind::UnknownQuantisation {
            repository,
            asked: asked.to_owned(),
            known: labels(&models),
        }
        .into());
    };
    let Some(split) = SplitName::parse(&chosen.path) else {
        return Ok(vec![chosen.clone()]);
    };
    let part = |number| {
        let name = split.part(number);
        let file = files.iter().find(|file| file.path == name);
        file.cloned().ok_or_else(|| {
            let repository = format!("hf:{repository}");
            HubErrorKind::MissingPart { repository, name }.into()
        })
    };
    (1..=split.count()).map(part).collect()
}

/// What can be asked for: the quantisations, or file names that state none.
fn labels(models: &[&RepositoryFile]) -> Vec<String> {
    let mut labels = Vec::new();
    for file in models {
        let label = quantisation_of_name(&file.path).unwrap_or_else(|| file.path.clone());
        if !labels.contains(&label) {
            labels.push(label);
        }
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str) -> RepositoryFile {
        RepositoryFile {
            path: path.to_owned(),
            bytes: 1,
            sha256: None,
        }
    }

    fn chosen(names: &[&str], asked: Option<&str>) -> Result<Vec<String>, String> {
        let files: Vec<_> = names.iter().map(|name| file(name)).collect();
        let chosen = choose("o/r", &files, asked).map_err(|e| e.to_string())?;
        Ok(chosen.into_iter().map(|file| file.path).collect())
    }

    #[test]
    fn names_state_their_quantisation() {
        let table = [
            ("SmolLM2-135M-Instruct.Q4_1.gguf", Some("Q4_1")),
            ("model-q4_k_m.gguf", Some("Q4_K_M")),
            ("model_q8_0.gguf", Some("Q8_0")),
            ("Model-UD-IQ2_XXS.gguf", Some("IQ2_XXS")),
            ("BF16/Model-BF16-00001-of-00002.gguf", Some("BF16")),
            ("F16/model.gguf", Some("F16")),
            ("qwen2.5-coder-1.5b.gguf", None),
            ("model.gguf", None),
        ];
        for (name, want) in table {
            assert_eq!(quantisation_of_name(name).as_deref(), want, "{name}");
        }
    }

    #[test]
    fn the_choice_is_that_of_llama_cpp() {
        let names = [
            "README.md",
            "mmproj-model-Q4_K_M.gguf",
            "model-Q2_K.gguf",
            "model-Q4_0.gguf",
            "model-q4_k_m.gguf",
            "sub/model-Q6_K.gguf",
        ];
        assert_eq!(chosen(&names, None).unwrap(), ["model-q4_k_m.gguf"]);
        assert_eq!(chosen(&names, Some("q2_K")).unwrap(), ["model-Q2_K.gguf"]);
        assert_eq!(
            chosen(&names, Some("Q6_K")).unwrap(),
            ["sub/model-Q6_K.gguf"]
        );
        let by_name = chosen(&names, Some("MODEL-q4_0.gguf"));
        assert_eq!(by_name.unwrap(), ["model-Q4_0.gguf"]);
        assert_eq!(chosen(&names[2..4], None).unwrap(), ["model-Q4_0.gguf"]);
        assert_eq!(chosen(&["z.gguf", "b.gguf"], None).unwrap(), ["b.gguf"]);
        // Q4_K is not Q4_K_M.
        assert_eq!(
            chosen(&names, Some("Q4_K")).unwrap_err(),
            "hf:o/r has no GGUF model \"Q4_K\"; it has Q2_K, Q4_0, Q4_K_M, Q6_K"
        );
        let error = chosen(&names[..2], Some("Q4_K_M")).unwrap_err();
        assert_eq!(
            error,
            "hf:o/r has no GGUF model and is no folder with config.json and model.safetensors"
        );
    }

    #[test]
    fn split_models_are_chosen_whole() {
        let names = ["Q8_0/m-00002-of-00002.gguf", "Q8_0/m-00001-of-00002.gguf"];
        assert_eq!(
            chosen(&names, None).unwrap(),
            ["Q8_0/m-00001-of-00002.gguf", "Q8_0/m-00002-of-00002.gguf"]
        );
        assert_eq!(
            chosen(&names[..1], Some("Q8_0")).unwrap_err(),
            "hf:o/r has no file Q8_0/m-00001-of-00002.gguf, a part of the split model"
        );
    }

    #[test]
    fn a_repository_without_gguf_files_is_a_folder() {
        let names = [
            "README.md",
            "config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "onnx/model.onnx",
            "original/model-00001-of-00001.safetensors",
            "tokenizer.json",
        ];
        let expected = [
            "model.safetensors.index.json",
            "config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "tokenizer.json",
        ];
        assert_eq!(chosen(&names, None).unwrap(), expected);
        let encoder = [
            "1_Pooling/config.json",
            "config.json",
            "model.safetensors",
            "modules.json",
            "vocab.txt",
        ];
        let expected = [
            "model.safetensors",
            "1_Pooling/config.json",
            "config.json",
            "modules.json",
        ];
        assert_eq!(chosen(&encoder, None).unwrap(), expected);
        // Beside GGUF files it must be asked for.
        let both = ["config.json", "m-Q4_0.gguf", "model.safetensors"];
        assert_eq!(chosen(&both, None).unwrap(), ["m-Q4_0.gguf"]);
        let asked = chosen(&both, Some("safetensors")).unwrap();
        assert_eq!(asked, ["model.safetensors", "config.json"]);
        assert!(chosen(&["config.json", "tokenizer.json"], None).is_err());
    }
}
