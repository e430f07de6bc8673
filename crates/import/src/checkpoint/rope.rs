//! The rotary embedding of `config.json`: `rope_parameters`, or `rope_theta` with `rope_scaling` in older files.

use std::f64::consts::PI;

use serde_json::{Map, Value};

use super::config::{Config, name, number, wrong};
use super::model_type::ModelType;
use crate::error::ImportError;
use crate::gguf::architecture::Architecture;

/// The keys of a rotary embedding, read.
pub(super) struct Rope {
    /// Base of the frequencies.
    pub(super) base: f64,
    /// Base of layers with a window, if it is stated apart.
    pub(super) window_base: Option<f64>,
    /// Elements of a head that are rotated, if not all.
    pub(super) dim: Option<usize>,
    pub(super) scaling: Scaling,
}

/// How frequencies are scaled.
pub(super) enum Scaling {
    None,
    Linear {
        factor: f64,
    },
    Yarn {
        factor: f64,
        original: usize,
        beta_fast: f64,
        beta_slow: f64,
        /// Factor on the table, beside the one that follows from `factor`.
        attention: f64,
    },
    /// Llama 3's factors.
    Divided {
        factors: Vec<f32>,
    },
    /// LongRoPE's factors.
    Stretched {
        long: Vec<f32>,
        short: Vec<f32>,
        original: usize,
        attention: Option<f64>,
    },
}

impl Rope {
    /// The tensors that GGUF files have for factors.
    pub(super) fn factors(&self) -> impl Iterator<Item = (&'static str, &[f32])> {
        let all: [Option<(&'static str, &[f32])>; 2] = match &self.scaling {
            Scaling::Divided { factors } => [Some(("rope_freqs.weight", factors)), None],
            Scaling::Stretched { long, short, .. } => [
                Some(("rope_factors_long.weight", long)),
                Some(("rope_factors_short.weight", short)),
            ],
            _ => [None, None],
        };
        all.into_iter().flatten()
    }
}

/// The parameters of one embedding, with the keys that were read.
struct Parameters<'a> {
    map: &'a Map<String, Value>,
}

/// All keys of parameters that are read.
const KNOWN: [&str; 16] = [
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "truncate",
    "mscale",
    "mscale_all_dim",
    "low_freq_factor",
    "high_freq_factor",
    "long_factor",
    "short_factor",
    "partial_rotary_factor",
];

impl Parameters<'_> {
    fn number(&self, key: &str) -> Result<Option<f64>, ImportError> {
        let value = self.map.get(key).filter(|value| !value.is_null());
        value.map(|value| number(key, value)).transpose()
    }

    fn positive(&self, key: &str) -> Result<Option<f64>, ImportError> {
        match self.number(key)? {
            Some(x) if x <= 0.0 => Err(ImportError::value(
                name(key),
                format!("is {x}, must be above 0"),
            )),
            x => Ok(x),
        }
    }

    fn required(&self, key: &str) -> Result<f64, ImportError> {
        let found = self.positive(key)?;
        found.ok_or_else(|| ImportError::value(name(key), "is missing"))
    }

    fn size(&self, key: &str) -> Result<Option<usize>, ImportError> {
        let found = self.positive(key)?;
        Ok(found.filter(|x| *x < 1e9).map(|x| x as usize))
    }

    fn floats(&self, key: &str) -> Result<Vec<f32>, ImportError> {
        let value = self.map.get(key).unwrap_or(&Value::Null);
        let list = value.as_array();
        let list = list.ok_or_else(|| wrong(key, value, "a list of numbers"))?;
        let each = list.iter().map(|x| number(key, x).map(|x| x as f32));
        each.collect()
    }

    fn kind(&self) -> &str {
        let kinds = ["rope_type", "type"].map(|key| self.map.get(key).and_then(Value::as_str));
        kinds.into_iter().flatten().next().unwrap_or("default")
    }

    /// Refuses keys that are not known.
    fn check(&self) -> Result<(), ImportError> {
        match self
            .map
            .iter()
            .find(|(key, value)| !KNOWN.contains(&&***key) && !value.is_null())
        {
            Some((key, value)) => {
                let what = format!("{key} = {value} in the rope parameters of config.json");
                Err(ImportError::unsupported(what))
            }
            None => Ok(()),
        }
    }
}

/// Reads the keys.
pub(super) fn read(config: &Config<'_>, row: &ModelType) -> Result<Rope, ImportError> {
    let none = Map::new();
    let found = ["rope_parameters", "rope_scaling"].map(|key| config.get(key));
    let object = found.into_iter().flatten().next();
    let map = match object {
        Some(Value::Object(map)) => map,
        Some(other) => return Err(wrong("rope_scaling", other, "an object")),
        None => &none,
    };
    let of = |kind: &str| map.get(kind).and_then(Value::as_object);
    let global = Parameters {
        map: of("full_attention").unwrap_or(map),
    };
    global.check()?;
    let local = of("sliding_attention").map(|map| Parameters { map });
    if let Some(local) = &local {
        local.check()?;
        if local.kind() != "default" {
            let what = format!("rope_type {:?} in layers with a window", local.kind());
            return Err(ImportError::unsupported(what));
        }
    }
    let theta = config.number(&["rope_theta", "rotary_emb_base"])?;
    let base = global.positive("rope_theta")?.or(theta);
    let base = base.unwrap_or(10000.0);
    let local_theta = config.number(&["rope_local_base_freq"])?;
    let window_base = match &local {
        Some(local) => local.positive("rope_theta")?,
        None => local_theta,
    };
    let head_dim = head_dim(config)?;
    let partial = global.positive("partial_rotary_factor")?;
    let partial = match partial {
        // Files with parameters say all that rotates in them.
        Some(partial) => Some(partial),
        None => config.number(&["partial_rotary_factor", "rotary_pct"])?,
    };
    let dim = partial.map(|part| (head_dim as f64 * part) as usize);
    let dim = dim.filter(|dim| *dim != head_dim);
    let scaling = scaling(&global, config, row, (dim.unwrap_or(head_dim), base))?;
    Ok(Rope {
        base,
        window_base,
        dim,
        scaling,
    })
}

/// Elements of a head.
fn head_dim(config: &Config<'_>) -> Result<usize, ImportError> {
    let heads = config.size(&["num_attention_heads", "n_head"])?;
    let width = config.size(&["hidden_size", "n_embd"])?;
    Ok(config
        .optional_size(&["head_dim"])?
        .unwrap_or(width / heads))
}

fn scaling(
    parameters: &Parameters<'_>,
    config: &Config<'_>,
    row: &ModelType,
    (dim, base): (usize, f64),
) -> Result<Scaling, ImportError> {
    let trained = config.optional_size(&["max_position_embeddings", "n_positions"])?;
    let beside = config.optional_size(&["original_max_position_embeddings"])?;
    let own = parameters.size("original_max_position_embeddings")?;
    let original = own.or(beside).or(trained).unwrap_or(0);
    Ok(match parameters.kind() {
        "default" => Scaling::None,
        "linear" => Scaling::Linear {
            factor: parameters.required("factor")?,
        },
        "yarn" => {
            let factor = parameters.required("factor")?;
            let whole = parameters.map.get("truncate").and_then(Value::as_bool);
            let whole_pairs = Architecture::find(row.architecture).map(|a| a.yarn_whole_pairs);
            if Some(whole.unwrap_or(true)) != whole_pairs {
                let what = format!("truncate = {} of YaRN", whole.unwrap_or(true));
                return Err(ImportError::unsupported(what));
            }
            let growth = |scale: f64| match factor <= 1.0 {
                true => 1.0,
                false => 0.1 * scale * factor.ln() + 1.0,
            };
            let scales = ["mscale", "mscale_all_dim"].map(|key| parameters.positive(key));
            let [scale, all] = scales;
            let attention = match (parameters.positive("attention_factor")?, scale?, all?) {
                (Some(factor), ..) => factor,
                (None, Some(scale), Some(all)) => growth(scale) / growth(all),
                _ => growth(1.0),
            };
            Scaling::Yarn {
                factor,
                original,
                beta_fast: parameters.positive("beta_fast")?.unwrap_or(32.0),
                beta_slow: parameters.positive("beta_slow")?.unwrap_or(1.0),
                attention: attention / growth(1.0),
            }
        }
        "llama3" => Scaling::Divided {
            factors: divided(parameters, original as f64, dim, base)?,
        },
        "longrope" | "su" => Scaling::Stretched {
            long: parameters.floats("long_factor")?,
            short: parameters.floats("short_factor")?,
            original,
            attention: parameters.positive("attention_factor")?,
        },
        other => {
            let what = format!("rope_type {other:?} of config.json");
            return Err(ImportError::unsupported(what));
        }
    })
}

/// Llama 3's factor of each frequency: 1 for short waves, `factor` for long ones, a blend between.
fn divided(
    parameters: &Parameters<'_>,
    original: f64,
    dim: usize,
    base: f64,
) -> Result<Vec<f32>, ImportError> {
    let factor = parameters.required("factor")?;
    let low = parameters.required("low_freq_factor")?;
    let high = parameters.required("high_freq_factor")?;
    let each = (0..dim / 2).map(|i| {
        let wave = 2.0 * PI * base.powf((2 * i) as f64 / dim as f64);
        if wave < original / high {
            return 1.0;
        }
        if wave > original / low {
            return factor as f32;
        }
        let smooth = (original / wave - low) / (high - low);
        (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
    });
    Ok(each.collect())
}
