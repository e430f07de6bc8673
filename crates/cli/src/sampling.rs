//! The flags of the sampler, made from the schema of sampling options.

use crate::output;
use anyhow::{Context, Result};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use kvark::Model;
use kvark::generate::{OptionKind, SAMPLING_OPTIONS, SamplerOptions, SamplingOption};

/// The sampling options that were given, as the texts of their flags. All others have their defaults.
#[derive(Clone, Default)]
pub(crate) struct SamplingArgs(Vec<(&'static SamplingOption, Vec<String>)>);

impl Args for SamplingArgs {
    fn augment_args(command: Command) -> Command {
        command.args(SAMPLING_OPTIONS.iter().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SamplingArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<SamplingArgs, clap::Error> {
        let mut read = SamplingArgs::default();
        read.update_from_arg_matches(matches)?;
        Ok(read)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for option in SAMPLING_OPTIONS {
            if let Some(texts) = matches.get_many::<String>(&option.flag()) {
                self.0.retain(|(known, _)| known.name != option.name);
                self.0.push((option, texts.cloned().collect()));
            }
        }
        Ok(())
    }
}

/// The flag of an option.
fn argument(option: &'static SamplingOption) -> Arg {
    let flag = option.flag();
    let check = move |text: &str| {
        option.set_texts(&mut SamplerOptions::default(), &[text])?;
        Ok::<String, String>(text.to_owned())
    };
    let arg = Arg::new(flag.clone())
        .long(flag.clone())
        .value_name(option.value_name)
        .help(help(option))
        .help_heading("Sampling")
        .allow_negative_numbers(true)
        .value_parser(check)
        .action(match option.is_list() {
            true => ArgAction::Append,
            false => ArgAction::Set,
        });
    let arg = match option.short {
        Some(letter) => arg.short(letter),
        None => arg,
    };
    let arg = match option.alias {
        Some(alias) => arg.visible_alias(alias),
        None => arg,
    };
    let name = option.name.replace('_', "-");
    let arg = match name != flag && option.alias != Some(&name) {
        true => arg.alias(name),
        false => arg,
    };
    match option.kind {
        OptionKind::Texts(_) => arg.allow_hyphen_values(true),
        OptionKind::Biases(_) => arg.value_delimiter(','),
        _ => arg,
    }
}

/// The help of an option, with its default. Other options are named by their flags.
fn help(option: &SamplingOption) -> String {
    let mut help = option.help().to_owned();
    for other in SAMPLING_OPTIONS {
        help = help.replace(&format!("`{}`", other.name), &format!("--{}", other.flag()));
    }
    let default = option.text(&SamplerOptions::default());
    let forms = match option.kind {
        OptionKind::Texts(_) => "; may be given several times; none for no text",
        OptionKind::Biases(_) => {
            ", as in 15043+1, 15043-1.5 or 15043:-inf; may be given several times"
        }
        _ => "",
    };
    let default = match (&option.kind, option.default_file) {
        (OptionKind::Biases(_), _) => return help + forms,
        (OptionKind::Seed(_), _) => "-1".to_owned(),
        (_, Some(file)) => format!("that of {file}, or {default}"),
        (_, None) => default,
    };
    format!("{help}{forms} [default: {default}]")
}

impl SamplingArgs {
    /// The options that were given, with their texts.
    pub(crate) fn given(&self) -> &[(&'static SamplingOption, Vec<String>)] {
        &self.0
    }

    /// The options, with the model's own defaults.
    ///
    /// # Errors
    /// If an option does not fit the model, such as a bias on a token that it does not have.
    pub(crate) fn options(&self, model: &Model) -> Result<SamplerOptions> {
        if let Some(config) = model.artifact().genai()
            && !config.not_honoured.is_empty()
        {
            let settings = config.not_honoured.join(", ");
            output::warn(&format!(
                "genai_config.json has settings that kvark does not support: {settings}"
            ));
        }
        let set = |options: &mut SamplerOptions| {
            for (option, texts) in &self.0 {
                let set = option.set_texts(options, texts);
                set.map_err(|wrong| anyhow::anyhow!("--{} {wrong}", option.flag()))?;
            }
            Ok::<(), anyhow::Error>(())
        };
        model
            .sampling(set)
            .context("the sampling options do not fit the model")
    }
}
