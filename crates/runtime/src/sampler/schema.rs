//! The schema of sampling options: [`SamplingOption`] has the name, the values, the default and the help of each. The command,
//! its `/set`, the configuration file, the server with its OpenAPI document and Python read, check and describe options with it.

use super::{SAMPLING_OPTIONS, SamplerOptions, chain};
use crate::{RuntimeError, RuntimeErrorKind};

/// Declares `SamplerOptions` and [`SAMPLING_OPTIONS`]: one row a field, with its help, default, kind of value and value name.
/// `internal` fields are not options.
macro_rules! sampling_options {
    (
        $($(#[doc = $help:literal])+ $name:ident: $type:ty = $default:expr, $kind:ident($($range:expr),*), $value:literal $(.$with:ident($with_value:expr))*;)+
        internal { $($(#[$docs:meta])+ $field:ident: $field_type:ty,)+ }
    ) => {
        /// The options of a [`Sampler`]. Names and defaults are llama.cpp's. [`SAMPLING_OPTIONS`] describes them.
        #[derive(Clone, Debug, PartialEq)]
        pub struct SamplerOptions {
            $($(#[doc = $help])+ pub $name: $type,)+
            $($(#[$docs])+ pub $field: $field_type,)+
        }

        impl Default for SamplerOptions {
            fn default() -> SamplerOptions {
                SamplerOptions {
                    $($name: $default,)+
                    $($field: <$field_type>::default(),)+
                }
            }
        }

        /// Every sampling option, in the order of help and of `/set`.
        pub static SAMPLING_OPTIONS: &[SamplingOption] = &[
            $(SamplingOption {
                name: stringify!($name),
                help: concat!($($help),+),
                value_name: $value,
                kind: OptionKind::$kind($($range,)* |options| &mut options.$name),
                $($with: Some($with_value),)*
                ..SamplingOption::UNNAMED
            },)+
        ];
    };
}

/// A sampling option: what it is called, which values it takes, and where `SamplerOptions` holds it.
#[derive(Debug)]
pub struct SamplingOption {
    /// The name in `SamplerOptions`, in JSON and in Python.
    pub name: &'static str,
    pub(super) flag: Option<&'static str>,
    /// A second name of the command's flag.
    pub alias: Option<&'static str>,
    /// The letter of the command's flag.
    pub short: Option<char>,
    /// The name of the value in help.
    pub value_name: &'static str,
    pub(super) help: &'static str,
    /// The file of a model that may have its own default.
    pub default_file: Option<&'static str>,
    /// The values.
    pub kind: OptionKind,
}

/// Where `SamplerOptions` holds an option.
pub(super) type Field<T> = fn(&mut SamplerOptions) -> &mut T;

/// The values of an option.
#[derive(Debug)]
pub enum OptionKind {
    /// A number.
    Number(NumberRange, Field<f32>),
    /// A whole number of at least 0. -1 stands for the given number, if there is one.
    Count(Option<usize>, Field<usize>),
    /// One of several whole numbers.
    Choice(&'static [usize], Field<usize>),
    /// A whole number; -1 draws one.
    Seed(Field<u64>),
    /// Names of samplers.
    Samplers(Field<Vec<&'static str>>),
    /// Texts.
    Texts(Field<Vec<String>>),
    /// Token ids with biases.
    Biases(Field<Vec<(u32, f32)>>),
}

/// The numbers that an option takes. All are finite.
#[derive(Clone, Copy, Debug)]
pub struct NumberRange {
    /// The lowest number; negative infinity if there is none.
    pub low: f32,
    /// The highest number; infinity if there is none.
    pub high: f32,
    /// Whether `low` itself is excluded.
    pub above: bool,
}

/// All finite numbers.
pub(super) const ANY: NumberRange = NumberRange {
    low: f32::NEG_INFINITY,
    high: f32::INFINITY,
    above: false,
};
/// Numbers above 0.
pub(super) const POSITIVE: NumberRange = NumberRange {
    low: 0.0,
    above: true,
    ..ANY
};
/// Numbers from 0 to 1.
pub(super) const FRACTION: NumberRange = at_least_and(0.0, 1.0);

/// Numbers of at least `low`.
pub(super) const fn at_least(low: f32) -> NumberRange {
    at_least_and(low, f32::INFINITY)
}

const fn at_least_and(low: f32, high: f32) -> NumberRange {
    NumberRange {
        low,
        high,
        above: false,
    }
}

impl NumberRange {
    fn contains(&self, x: f32) -> bool {
        x.is_finite() && (self.low..=self.high).contains(&x) && !(self.above && x == self.low)
    }
}

impl std::fmt::Display for NumberRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.low.is_finite(), self.high.is_finite()) {
            (true, true) => write!(f, "a number from {} to {}", self.low, self.high),
            (true, false) if self.above => write!(f, "a number above {}", self.low),
            (true, false) => write!(f, "a number of at least {}", self.low),
            _ => write!(f, "a number"),
        }
    }
}

/// The largest number of texts of an option, and of bytes of a text.
const MAX_TEXTS: usize = 64;
const MAX_TEXT_BYTES: usize = 256;

/// A value of an option, as a program writes it.
#[derive(Clone, Debug, PartialEq)]
pub enum OptionValue {
    /// A whole number.
    Integer(i128),
    /// Another number.
    Number(f64),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<OptionValue>),
    /// An object: names with values.
    Object(Vec<(String, OptionValue)>),
    /// A value that no option takes.
    Other,
}

impl OptionValue {
    fn number(&self) -> Option<f32> {
        match self {
            OptionValue::Integer(n) => Some(*n as f32),
            OptionValue::Number(x) => Some(*x as f32),
            _ => None,
        }
    }

    fn integer(&self) -> Option<i128> {
        match self {
            OptionValue::Integer(n) => Some(*n),
            // Programs of other languages write 16.0 for 16.
            OptionValue::Number(x) if x.fract() == 0.0 && x.abs() < 9e15 => Some(*x as i128),
            _ => None,
        }
    }

    /// A text or a list of texts.
    fn texts(self) -> Option<Vec<String>> {
        match self {
            OptionValue::Text(text) => Some(vec![text]),
            OptionValue::List(items) => {
                let text = |item| match item {
                    OptionValue::Text(text) => Some(text),
                    _ => None,
                };
                items.into_iter().map(text).collect()
            }
            _ => None,
        }
    }
}

impl SamplingOption {
    /// What an option has beside its name, its help and its kind, unless it states more.
    pub(super) const UNNAMED: SamplingOption = SamplingOption {
        name: "",
        flag: None,
        alias: None,
        short: None,
        value_name: "",
        help: "",
        default_file: None,
        kind: OptionKind::Seed(|options| &mut options.seed),
    };

    /// The option with this name, flag or second flag; hyphens and underscores are the same.
    pub fn find(name: &str) -> Option<&'static SamplingOption> {
        let name = name.replace('_', "-");
        SAMPLING_OPTIONS.iter().find(|option| {
            let own = option.name.replace('_', "-");
            own == name || option.flag() == name || option.alias == Some(&name)
        })
    }

    /// The name of the command's flag.
    pub fn flag(&self) -> String {
        self.flag
            .map_or_else(|| self.name.replace('_', "-"), str::to_owned)
    }

    /// What the option does, in one line. Other options are named with backquotes.
    pub fn help(&self) -> &'static str {
        self.help.trim()
    }

    /// Whether the command's flag may be given several times.
    pub fn is_list(&self) -> bool {
        matches!(self.kind, OptionKind::Texts(_) | OptionKind::Biases(_))
    }

    /// A description of the values, such as "a number from 0 to 1".
    pub fn range(&self) -> String {
        match &self.kind {
            OptionKind::Number(range, _) => range.to_string(),
            OptionKind::Count(None, _) => "a whole number of at least 0".to_owned(),
            OptionKind::Count(Some(_), _) => "a whole number of at least 0, or -1".to_owned(),
            OptionKind::Choice(choices, _) => {
                let choices: Vec<String> = choices.iter().map(usize::to_string).collect();
                choices.join(" or ")
            }
            OptionKind::Seed(_) => "a whole number, or -1 to draw one".to_owned(),
            OptionKind::Samplers(_) => {
                let names: Vec<&str> = chain::names().collect();
                format!("names of samplers ({})", names.join(", "))
            }
            OptionKind::Texts(_) => {
                format!("at most {MAX_TEXTS} texts of 1 to {MAX_TEXT_BYTES} bytes")
            }
            OptionKind::Biases(_) => "token ids with biases, which are numbers or -inf".to_owned(),
        }
    }

    /// Sets the option.
    ///
    /// # Errors
    /// What the value must be, if it is none of [`range`](SamplingOption::range).
    pub fn set(&self, options: &mut SamplerOptions, value: OptionValue) -> Result<(), String> {
        let set = match &self.kind {
            OptionKind::Number(range, field) => {
                let number = value.number().filter(|x| range.contains(*x));
                number.map(|x| *field(options) = x)
            }
            OptionKind::Count(minus_one, field) => {
                let count = match value.integer() {
                    Some(-1) => *minus_one,
                    n => n.and_then(|n| usize::try_from(n).ok()),
                };
                count.map(|n| *field(options) = n)
            }
            OptionKind::Choice(choices, field) => {
                let n = value.integer().and_then(|n| usize::try_from(n).ok());
                let n = n.filter(|n| choices.contains(n));
                n.map(|n| *field(options) = n)
            }
            OptionKind::Seed(field) => {
                let seed = value.integer().and_then(|n| match n {
                    -1 => Some(random_seed()),
                    n => u64::try_from(n)
                        .ok()
                        .or(i64::try_from(n).ok().map(|n| n as u64)),
                });
                seed.map(|n| *field(options) = n)
            }
            OptionKind::Samplers(field) => {
                let names = value.texts().and_then(|texts| {
                    let names = texts.iter().flat_map(|text| text.split(';'));
                    let names = names.map(str::trim).filter(|name| !name.is_empty());
                    names.map(chain::name).collect::<Option<_>>()
                });
                names.map(|names| *field(options) = names)
            }
            OptionKind::Texts(field) => {
                let fits = |texts: &Vec<String>| {
                    let each = |text: &String| (1..=MAX_TEXT_BYTES).contains(&text.len());
                    texts.len() <= MAX_TEXTS && texts.iter().all(each)
                };
                let texts = value.texts().filter(fits);
                texts.map(|texts| *field(options) = texts)
            }
            OptionKind::Biases(field) => {
                let biases = match value {
                    OptionValue::Object(entries) => entries.into_iter().map(bias).collect(),
                    _ => None,
                };
                biases.map(|biases| *field(options) = biases)
            }
        };
        set.ok_or_else(|| format!("must be {}", self.range()))
    }

    /// Sets the option from the texts of the command's flag: one, or several for a list.
    ///
    /// # Errors
    /// As for [`set`](SamplingOption::set).
    pub fn set_texts(
        &self,
        options: &mut SamplerOptions,
        texts: &[impl AsRef<str>],
    ) -> Result<(), String> {
        let texts = texts.iter().map(AsRef::as_ref);
        let value = match &self.kind {
            OptionKind::Texts(_) => {
                let texts: Vec<&str> = texts.collect();
                let none = texts == ["none"];
                let texts = texts.into_iter().filter(|_| !none);
                OptionValue::List(texts.map(|t| OptionValue::Text(unescaped(t))).collect())
            }
            OptionKind::Samplers(_) => OptionValue::Text(texts.collect()),
            OptionKind::Biases(_) => {
                let biases = texts.flat_map(|text| text.split(','));
                OptionValue::Object(biases.map(token_bias).collect::<Result<_, _>>()?)
            }
            OptionKind::Number(..) => {
                let number = texts.last().and_then(|text| text.parse::<f32>().ok());
                number.map_or(OptionValue::Other, |x| OptionValue::Number(x.into()))
            }
            _ => {
                let number = texts.last().and_then(|text| text.parse().ok());
                number.map_or(OptionValue::Other, OptionValue::Integer)
            }
        };
        self.set(options, value)
    }

    /// The option's value as the command's flag takes it; empty if it is an empty list.
    pub fn text(&self, options: &SamplerOptions) -> String {
        let mut options = options.clone();
        match &self.kind {
            OptionKind::Number(_, field) => field(&mut options).to_string(),
            OptionKind::Count(minus_one, field) => match *field(&mut options) {
                usize::MAX if *minus_one == Some(usize::MAX) => "-1".to_owned(),
                n => n.to_string(),
            },
            OptionKind::Choice(_, field) => field(&mut options).to_string(),
            OptionKind::Seed(field) => field(&mut options).to_string(),
            OptionKind::Samplers(field) => field(&mut options).join(";"),
            OptionKind::Texts(field) => {
                let texts = field(&mut options).iter().map(|text| format!("{text:?}"));
                texts.collect::<Vec<String>>().join(" ")
            }
            OptionKind::Biases(field) => {
                let biases = field(&mut options).iter();
                let biases = biases.map(|(id, bias)| format!("{id}{bias:+}"));
                biases.collect::<Vec<String>>().join(" ")
            }
        }
    }
}

/// A bias of an object. "-inf" bans a token, and so does the number -100, as in OpenAI's API.
fn bias((id, bias): (String, OptionValue)) -> Option<(u32, f32)> {
    let bias = match bias {
        OptionValue::Text(text) => text.parse().ok()?,
        number => match number.number()? {
            ban if ban <= -100.0 => f32::NEG_INFINITY,
            bias => bias,
        },
    };
    (!bias.is_nan() && bias < f32::INFINITY).then_some((id.parse().ok()?, bias))
}

/// Parses `15043+1`, `15043-1` (llama.cpp's form) or `15043:1.5`. The bias may be `-inf`.
fn token_bias(text: &str) -> Result<(String, OptionValue), String> {
    let wrong =
        || "must be a token id and a bias, as in 15043+1, 15043-1.5 or 15043:-inf".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (id, text) = text.split_at(digits);
    let text = text.strip_prefix([':', '=']).unwrap_or(text);
    let value = OptionValue::Text(text.to_owned());
    bias((id.to_owned(), value.clone())).ok_or_else(wrong)?;
    Ok((id.to_owned(), value))
}

/// Replaces `\n`, `\t`, `\r`, `\"`, `\'` and `\\` by the characters they stand for.
fn unescaped(text: &str) -> String {
    let mut found = String::new();
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        if c != '\\' {
            found.push(c);
            continue;
        }
        match characters.next() {
            Some('n') => found.push('\n'),
            Some('t') => found.push('\t'),
            Some('r') => found.push('\r'),
            Some(same @ ('"' | '\'' | '\\')) => found.push(same),
            other => found.extend(['\\'].into_iter().chain(other)),
        }
    }
    found
}

/// A random seed of 32 bits: short enough to copy by hand, and exact in JSON readers that use doubles.
pub fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let hash = RandomState::new().hash_one(std::time::Instant::now());
    u64::from(hash as u32)
}

impl SamplerOptions {
    /// Checks every option, for a model with `vocab` tokens.
    ///
    /// # Errors
    /// `InvalidOptions` with the first option that is out of range.
    pub fn check(&self, vocab: usize) -> Result<(), RuntimeError> {
        let invalid = |text: String| Err(RuntimeErrorKind::InvalidOptions(text).into());
        let mut options = self.clone();
        for option in SAMPLING_OPTIONS {
            let fits = match &option.kind {
                OptionKind::Number(range, field) => range.contains(*field(&mut options)),
                OptionKind::Choice(choices, field) => choices.contains(field(&mut options)),
                _ => true,
            };
            if !fits {
                let (name, value, range) = (option.name, option.text(self), option.range());
                return invalid(format!("{name} is {value}, must be {range}"));
            }
        }
        for (id, bias) in &self.logit_bias {
            if *id as usize >= vocab {
                return invalid(format!(
                    "logit_bias: token id {id} is outside the model's vocabulary of {vocab}"
                ));
            }
            if !(bias.is_finite() || *bias == f32::NEG_INFINITY) {
                return invalid(format!(
                    "logit_bias of token {id} is {bias}, must be a number or -inf"
                ));
            }
        }
        Ok(())
    }
}
