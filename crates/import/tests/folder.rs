//! Folders of Hugging Face that are wrong, and older forms of those that are right.

use std::fs;
use std::path::{Path, PathBuf};

use import::{ImportOptions, ModelFile};
use serde_json::{Value, json};

/// A copy of a fixture's folder, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn copy(name: &str, test: &str) -> Folder {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/folder");
        let to = std::env::temp_dir().join(format!("kvark-folder-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&to);
        fs::create_dir_all(&to).unwrap();
        for entry in fs::read_dir(from.join(name)).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
        Folder(to)
    }

    fn config(&self, change: impl FnOnce(&mut Value)) {
        self.json("config.json", change);
    }

    fn json(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let path = self.0.join(name);
        let mut json = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut json);
        fs::write(path, json.to_string()).unwrap();
    }

    /// Changes the header of the tensors' file.
    fn header(&self, change: impl FnOnce(&mut Value)) {
        let path = self.0.join("model.safetensors");
        let bytes = fs::read(&path).unwrap();
        let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let mut header = serde_json::from_slice(&bytes[8..end]).unwrap();
        change(&mut header);
        let mut header = header.to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        let length = (header.len() as u64).to_le_bytes();
        fs::write(path, [&length[..], &header, &bytes[end..]].concat()).unwrap();
    }

    fn error(&self) -> String {
        let error = import::open(&self.0).unwrap_err().to_string();
        assert!(!error.contains('\n'), "{error}");
        error
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

type Change = fn(&Folder);

#[test]
fn what_is_wrong_with_a_folder_is_named() {
    let table: &[(&str, Change)] = &[
        ("has a config.json, but no weights (*.safetensors)", |f| {
            fs::remove_file(f.0.join("model.safetensors")).unwrap();
        }),
        ("has no genai_config.json and no config.json", |f| {
            fs::remove_file(f.0.join("config.json")).unwrap();
        }),
        ("config.json is not valid JSON", |f| {
            fs::write(f.0.join("config.json"), "{").unwrap();
        }),
        ("model_type of config.json is missing", |f| {
            f.config(|c| c["model_type"] = Value::Null);
        }),
        (
            "model_type \"rwkv\" is not supported; supported types are llama, mistral, mixtral, qwen2",
            |f| f.config(|c| c["model_type"] = json!("rwkv")),
        ),
        ("hidden_size of config.json is missing", |f| {
            f.config(|c| c["hidden_size"] = Value::Null);
        }),
        ("num_hidden_layers of config.json is \"2\"", |f| {
            f.config(|c| c["num_hidden_layers"] = json!("2"));
        }),
        (
            "vocab_size of config.json is 65, but the embedding has 64 rows",
            |f| {
                f.config(|c| c["vocab_size"] = json!(65));
            },
        ),
        ("novel_gate = 3 of config.json is not supported", |f| {
            f.config(|c| c["novel_gate"] = json!(3));
        }),
        (
            "rope_type \"dynamic\" of config.json is not supported",
            |f| {
                f.config(|c| c["rope_parameters"]["rope_type"] = json!("dynamic"));
            },
        ),
        ("spiral = 2 in the rope parameters", |f| {
            f.config(|c| c["rope_parameters"]["spiral"] = json!(2));
        }),
        ("low_freq_factor of config.json is missing", |f| {
            f.config(|c| {
                c["rope_parameters"] = json!({ "rope_type": "llama3", "factor": 8.0 });
            });
        }),
        ("the activation \"relu\" in the architecture llama", |f| {
            f.config(|c| c["hidden_act"] = json!("relu"));
        }),
        ("attention_bias of config.json is true", |f| {
            f.config(|c| c["attention_bias"] = json!(true));
        }),
        ("quantization_config of config.json (method \"awq\")", |f| {
            f.config(|c| c["quantization_config"] = json!({ "quant_method": "awq" }));
        }),
        ("tensor lm_head.weight is missing", |f| {
            f.config(|c| c["tie_word_embeddings"] = json!(false));
        }),
        (
            "tensor model.layers.1.self_attn.k_proj.weight is missing",
            |f| {
                f.header(|h| {
                    let all = h.as_object_mut().unwrap();
                    all.remove("model.layers.1.self_attn.k_proj.weight");
                });
            },
        ),
        (
            "tensor model.layers.0.mlp.up_proj.weight has shape [47, 32], must have [48, 32]",
            |f| {
                f.header(|h| {
                    let up = &mut h["model.layers.0.mlp.up_proj.weight"];
                    let from = up["data_offsets"][0].as_u64().unwrap();
                    up["shape"] = json!([47, 32]);
                    up["data_offsets"][1] = json!(from + 47 * 32 * 4);
                });
            },
        ),
        (
            "tensor model.layers.0.mlp.novel.weight is not part of the architecture llama",
            |f| {
                f.header(|h| {
                    let up = h["model.layers.0.mlp.up_proj.weight"].take();
                    h["model.layers.0.mlp.novel.weight"] = up.clone();
                    h["model.layers.0.mlp.up_proj.weight"] = up;
                    // The bytes belong to one of them.
                    let from = h["model.layers.0.mlp.novel.weight"]["data_offsets"][0].clone();
                    h["model.layers.0.mlp.novel.weight"] =
                        json!({ "dtype": "F32", "shape": [0], "data_offsets": [from, from] });
                });
            },
        ),
        ("before another tensor ends at", |f| {
            f.header(|h| {
                let up = &mut h["model.layers.0.mlp.up_proj.weight"]["data_offsets"];
                for i in 0..2 {
                    up[i] = json!(up[i].as_u64().unwrap() - 4);
                }
            });
        }),
        ("lies in bytes", |f| {
            let path = f.0.join("model.safetensors");
            let bytes = fs::read(&path).unwrap();
            fs::write(path, &bytes[..bytes.len() - 8]).unwrap();
        }),
        (
            "the header states 1000000 bytes, more than there are",
            |f| {
                let path = f.0.join("model.safetensors");
                let mut bytes = fs::read(&path).unwrap();
                bytes[..8].copy_from_slice(&1_000_000u64.to_le_bytes());
                fs::write(path, bytes).unwrap();
            },
        ),
        ("the header is cut off", |f| {
            fs::write(f.0.join("model.safetensors"), [1, 2, 3]).unwrap();
        }),
    ];
    for (expected, change) in table {
        let folder = Folder::copy("llama_plain", "wrong");
        change(&folder);
        let error = folder.error();
        assert!(error.contains(expected), "{error}\n  {expected}");
    }
}

#[test]
fn what_is_wrong_with_an_index_is_named() {
    const INDEX: &str = "model.safetensors.index.json";
    let table: &[(&str, Change)] = &[
        (
            "the index names model-00001-of-00002.safetensors, which is not in the folder",
            |f| fs::remove_file(f.0.join("model-00001-of-00002.safetensors")).unwrap(),
        ),
        ("tensor model.extra.weight is missing", |f| {
            f.json(INDEX, |i| {
                i["weight_map"]["model.extra.weight"] = json!("model-00001-of-00002.safetensors");
            });
        }),
        ("which is not a file of the folder", |f| {
            f.json(INDEX, |i| i["weight_map"]["x"] = json!("../x.safetensors"));
        }),
        ("the index has no object \"weight_map\"", |f| {
            f.json(INDEX, |i| i["weight_map"] = json!([]));
        }),
        ("has several safetensors files and no", |f| {
            fs::remove_file(f.0.join(INDEX)).unwrap();
        }),
        (
            "tensor model.layers.0.block_sparse_moe.gate.weight has shape [5, 36], must have [8, 36]",
            |f| {
                // More experts than there are tensors of.
                f.config(|c| c["num_local_experts"] = json!(8));
            },
        ),
    ];
    for (expected, change) in table {
        let folder = Folder::copy("mixtral", "index");
        change(&folder);
        let error = folder.error();
        assert!(error.contains(expected), "{error}\n  {expected}");
    }
}

#[test]
fn an_expert_that_is_missing_is_named() {
    let table = [
        (
            "3.up_proj",
            "tensor model.layers.0.mlp.experts.3.up_proj.weight is missing",
        ),
        ("6.up_proj", "has shape [6, 12, 36]"),
    ];
    for (expert, expected) in table {
        let folder = Folder::copy("olmoe", "expert");
        folder.header(|h| {
            let all = h.as_object_mut().unwrap();
            all.remove(&format!("model.layers.0.mlp.experts.{expert}.weight"));
        });
        let error = folder.error();
        assert!(error.contains(expected), "{error}");
    }
}

/// Files of older versions of transformers have the parameters of RoPE and the windows under other keys.
#[test]
fn older_keys_mean_the_same() {
    type Change = fn(&mut Value);
    let table: &[(&str, Change)] = &[
        ("llama_llama3", |c| {
            c["rope_scaling"] = c["rope_parameters"].take();
            c["rope_theta"] = c["rope_scaling"]["rope_theta"].take();
            c["rope_scaling"]["type"] = c["rope_scaling"]["rope_type"].take();
        }),
        ("llama_yarn", |c| {
            c["rope_scaling"] = c["rope_parameters"].take();
            c["rope_theta"] = c["rope_scaling"]["rope_theta"].take();
        }),
        ("gemma3", |c| {
            let both = c["rope_parameters"].take();
            c["rope_scaling"] = both["full_attention"].clone();
            c["rope_theta"] = c["rope_scaling"]["rope_theta"].take();
            c["rope_local_base_freq"] = both["sliding_attention"]["rope_theta"].clone();
            c["layer_types"] = Value::Null;
            c["sliding_window_pattern"] = json!(6);
        }),
        ("mistral", |c| {
            c["rope_theta"] = c["rope_parameters"]["rope_theta"].take();
            c["rope_parameters"] = Value::Null;
            c["layer_types"] = Value::Null;
        }),
        ("glm4", |c| {
            c["partial_rotary_factor"] = c["rope_parameters"]["partial_rotary_factor"].take();
            c["rope_theta"] = c["rope_parameters"]["rope_theta"].take();
            c["rope_parameters"] = Value::Null;
        }),
        ("qwen2", |c| {
            c["layer_types"] = Value::Null;
            c["sliding_window"] = json!(4);
        }),
    ];
    for (name, change) in table {
        let [new, old] = ["new", "old"].map(|which| Folder::copy(name, which));
        old.config(change);
        let graph = |folder: &Folder| {
            let artifact = import::open_with(&folder.0, &ImportOptions::default());
            let artifact = artifact.unwrap_or_else(|error| panic!("{name}: {error}"));
            let graph = &artifact.method("forward").unwrap().graph;
            let constants = graph
                .tensors()
                .iter()
                .filter_map(|tensor| tensor.constant());
            let constants: Vec<Vec<u8>> = constants.map(|bytes| bytes.to_vec()).collect();
            (graph.to_string(), constants)
        };
        assert!(graph(&new) == graph(&old), "{name}");
    }
}

/// Matrices stay in the type that they are stored in, as views into the mapped file.
#[test]
fn weights_stay_half_width() {
    for (name, bytes) in [("qwen2", 2), ("qwen3", 2), ("llama_plain", 4)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/folder");
        let artifact = import::open(&path.join(name)).unwrap();
        let graph = &artifact.method("forward").unwrap().graph;
        let mut matrices = 0;
        for tensor in graph.tensors() {
            let Some(data) = tensor.constant() else {
                continue;
            };
            let sizes = tensor.ty.dims(&Default::default()).unwrap();
            if sizes.len() == 2 {
                matrices += 1;
                assert_eq!(
                    data.len(),
                    sizes.iter().product::<usize>() * bytes,
                    "{name}"
                );
                assert!(data.is_mapped(), "{name}");
            }
        }
        assert!(matrices >= 15, "{name}: {matrices}");
        assert!(matches!(artifact.file, ModelFile::Safetensors { .. }));
    }
}
