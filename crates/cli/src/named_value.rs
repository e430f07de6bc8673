//! `NamedValue`: a parser of names that shells can complete.

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Command, Error};
use std::ffi::OsStr;

/// Parses a name by a function, and tells shells the names that there are. Other spellings may parse too.
#[derive(Clone)]
pub(crate) struct NamedValue<T> {
    names: Vec<&'static str>,
    parse: fn(&str) -> Result<T, String>,
}

impl<T> NamedValue<T> {
    pub(crate) fn new(
        names: impl IntoIterator<Item = &'static str>,
        parse: fn(&str) -> Result<T, String>,
    ) -> NamedValue<T> {
        let names = names.into_iter().collect();
        NamedValue { names, parse }
    }
}

impl<T: Clone + Send + Sync + 'static> TypedValueParser for NamedValue<T> {
    type Value = T;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<T, Error> {
        self.parse.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.names.iter().map(PossibleValue::new)))
    }
}
