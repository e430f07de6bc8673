//! The chain of samplers that a [`Sampler`] runs for each token.

use super::candidates::{Candidate, Candidates, Scratch};
use super::random::Random;
use super::{STAGES, SamplerOptions, logit_bias, mirostat, temperature};
use backend::{LogitsMode, RowOutputs};

/// A sampler of the chain, with its state.
pub(super) trait Link: CloneLink + Send + Sync {
    /// Changes logits of candidates, or removes candidates; one stays.
    fn apply(&mut self, candidates: &mut Candidates<'_>, history: &[u32], random: &mut Random);

    /// What `apply` can do, so that steps that cannot change the token are left out.
    fn effect(&self) -> Effect;

    /// Learns which of the last candidates was drawn.
    fn drawn(&mut self, _list: &[Candidate], _id: u32) {}
}

/// What a link can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Changes logits.
    Adjusts,
    /// Keeps this many of the most likely tokens.
    TopK(usize),
    /// Removes tokens, but not the most likely one.
    KeepsBest,
    /// Removes tokens, perhaps the most likely one.
    Removes,
}

/// Clones a link behind its box.
pub(super) trait CloneLink {
    fn boxed_clone(&self) -> Box<dyn Link>;
}

impl<T: Link + Clone + 'static> CloneLink for T {
    fn boxed_clone(&self) -> Box<dyn Link> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn Link> {
    fn clone(&self) -> Self {
        (**self).boxed_clone()
    }
}

/// A link without a memory of what was drawn.
#[derive(Clone)]
struct ApplyLink<F>(Effect, F);

impl<F> Link for ApplyLink<F>
where
    F: FnMut(&mut Candidates<'_>, &[u32], &mut Random) + Clone + Send + Sync + 'static,
{
    fn apply(&mut self, candidates: &mut Candidates<'_>, history: &[u32], random: &mut Random) {
        (self.1)(candidates, history, random);
    }

    fn effect(&self) -> Effect {
        self.0
    }
}

/// A link that applies a function to the candidates, the history and the random numbers.
pub(super) fn link<F>(effect: Effect, apply: F) -> Option<Box<dyn Link>>
where
    F: FnMut(&mut Candidates<'_>, &[u32], &mut Random) + Clone + Send + Sync + 'static,
{
    Some(Box::new(ApplyLink(effect, apply)))
}

/// A link of its options; `None` if they turn it off.
pub(super) type MakeLink = fn(&SamplerOptions) -> Option<Box<dyn Link>>;

/// A sampler by name.
pub(super) struct Stage {
    name: &'static str,
    aliases: &'static [&'static str],
    make: MakeLink,
}

impl Stage {
    pub(super) const fn new(
        name: &'static str,
        aliases: &'static [&'static str],
        make: MakeLink,
    ) -> Stage {
        Stage {
            name,
            aliases,
            make,
        }
    }

    fn find(name: &str) -> Option<&'static Stage> {
        let name = name.replace('-', "_");
        let is_it = |stage: &&Stage| stage.name == name || stage.aliases.contains(&&*name);
        STAGES.iter().find(is_it)
    }
}

/// The names of all samplers, in the default order.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    STAGES.iter().map(|stage| stage.name)
}

/// The name of a sampler that may be given by another of its names.
pub(super) fn name(name: &str) -> Option<&'static str> {
    Stage::find(name).map(|stage| stage.name)
}

/// Samples tokens; holds the state of its links and scratch.
#[derive(Clone)]
pub struct Sampler {
    options: SamplerOptions,
    random: Random,
    links: Vec<Box<dyn Link>>,
    /// Divides the logits of the last candidates.
    temperature: f32,
    /// Whether the token is always the most likely one after the links that change logits.
    takes_the_best: bool,
    scratch: Scratch,
}

impl Sampler {
    /// A sampler with the seed of the options.
    pub fn new(options: SamplerOptions) -> Sampler {
        let mut sampler = Sampler {
            random: Random::new(options.seed),
            options,
            links: vec![],
            temperature: 1.0,
            takes_the_best: false,
            scratch: Scratch::default(),
        };
        sampler.make_links();
        sampler
    }

    /// The options.
    pub fn options(&self) -> &SamplerOptions {
        &self.options
    }

    /// Changes the options of later samples. The sequence of random numbers goes on unless the seed is another one; Mirostat
    /// begins again.
    pub fn set_options(&mut self, options: SamplerOptions) {
        if options.seed != self.options.seed {
            self.random = Random::new(options.seed);
        }
        self.options = options;
        self.make_links();
    }

    fn make_links(&mut self) {
        let options = &self.options;
        let is_temperature = |stage: &&Stage| stage.name == temperature::NAME;
        let mirostat = mirostat::link(options);
        let stages = options.samplers.iter().filter_map(|name| Stage::find(name));
        let stages = stages.filter_map(|stage| Some((stage, (stage.make)(options)?)));
        // Mirostat takes the place of all that remove tokens.
        let mut stages: Vec<(&Stage, Box<dyn Link>)> = stages
            .filter(|(stage, link)| {
                mirostat.is_none() || is_temperature(stage) || link.effect() == Effect::Adjusts
            })
            .collect();
        // A temperature at the end is part of the draw.
        let last = stages.last().map(|(stage, _)| *stage);
        let is_drawn = mirostat.is_none() && last.as_ref().is_some_and(is_temperature);
        self.temperature = match is_drawn {
            true => options.temperature,
            false => 1.0,
        };
        stages.truncate(stages.len() - usize::from(is_drawn));
        let links = stages.into_iter().map(|(_, link)| link).chain(mirostat);
        self.links = logit_bias::link(options).into_iter().chain(links).collect();
        self.takes_the_best = self.cannot_leave_the_best();
    }

    /// Whether no link can remove the most likely token, and none draws.
    fn cannot_leave_the_best(&self) -> bool {
        let mut selected = false;
        for link in &self.links {
            match link.effect() {
                Effect::Adjusts if selected => return false,
                Effect::Adjusts => {}
                Effect::TopK(1) => return true,
                Effect::TopK(_) | Effect::KeepsBest => selected = true,
                Effect::Removes => return false,
            }
        }
        self.temperature <= 0.0
    }

    /// The outputs of a row that the next sample needs: the most likely token, the `top_k` most likely ones, or all logits
    /// where a link before top-k reads them or there is no top-k.
    pub fn wanted(&self) -> LogitsMode {
        match self.links.first().map(|link| link.effect()) {
            Some(Effect::Adjusts) => LogitsMode::Logits,
            _ if self.takes_the_best => LogitsMode::Argmax,
            Some(Effect::TopK(k)) => LogitsMode::TopK(k),
            _ => LogitsMode::Logits,
        }
    }

    /// Samples the token after `history` from its logits. Of equal logits, the lower id is preferred.
    pub fn sample(&mut self, logits: &[f32], history: &[u32]) -> u32 {
        self.sample_row(RowOutputs::Logits(logits), history)
    }

    /// Samples the token after `history` from the outputs of its row. The best tokens give the same token as all logits,
    /// if they are those of [`wanted`](Sampler::wanted); otherwise the token is drawn from those that are there.
    ///
    /// # Panics
    /// If the row is empty.
    pub fn sample_row(&mut self, row: RowOutputs<'_>, history: &[u32]) -> u32 {
        let mut candidates = match row {
            RowOutputs::TopK(best) if self.takes_the_best => return best[0].id,
            RowOutputs::TopK(best) => Candidates::of_topk(best, &mut self.scratch),
            RowOutputs::Logits(logits) => Candidates::of_logits(logits, &mut self.scratch),
        };
        let token = self.choose(&mut candidates, history);
        candidates.release(&mut self.scratch);
        token
    }

    fn choose(&mut self, candidates: &mut Candidates<'_>, history: &[u32]) -> u32 {
        let random = &mut self.random;
        if self.takes_the_best {
            for link in &mut self.links {
                match link.effect() {
                    Effect::Adjusts => link.apply(candidates, history, random),
                    _ => break,
                }
            }
            return backend::argmax(candidates.row().expect("no link has selected"));
        }
        // The first number of a token decides the draw, whichever other links need one.
        let chance = match self.temperature > 0.0 {
            true => random.uniform(),
            false => 0.0,
        };
        for link in &mut self.links {
            link.apply(candidates, history, random);
        }
        let list = candidates.list();
        let token = temperature::draw(list, self.temperature, chance);
        for link in &mut self.links {
            link.drawn(list, token);
        }
        token
    }
}
