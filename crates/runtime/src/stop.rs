//! `StopFilter`: ends a stream of text at a stop string, without showing any part of the stop string.

/// Finds stop strings in a stream of text. Text that may be the start of a stop string stays pending.
pub(crate) struct StopFilter {
    stops: Vec<String>,
    pending: String,
    /// The stop string that was found, as an index. No text is shown after it.
    found: Option<usize>,
}

impl StopFilter {
    pub(crate) fn new(stops: &[String]) -> StopFilter {
        let stops = stops.iter().filter(|s| !s.is_empty()).cloned().collect();
        StopFilter {
            stops,
            pending: String::new(),
            found: None,
        }
    }

    /// Appends text. Returns the text that can be shown now, and whether a stop string was found.
    pub(crate) fn push(&mut self, text: &str) -> (String, bool) {
        if self.found.is_some() {
            return (String::new(), true);
        }
        self.pending.push_str(text);
        if let Some((at, index)) = self
            .stops
            .iter()
            .enumerate()
            .filter_map(|(index, stop)| Some((self.pending.find(stop.as_str())?, index)))
            .min()
        {
            self.pending.truncate(at);
            self.found = Some(index);
            return (std::mem::take(&mut self.pending), true);
        }
        let mut keep = self.pending.len();
        for (at, _) in self.pending.char_indices() {
            if self
                .stops
                .iter()
                .any(|stop| stop.starts_with(&self.pending[at..]))
            {
                keep = at;
                break;
            }
        }
        let rest = self.pending.split_off(keep);
        (std::mem::replace(&mut self.pending, rest), false)
    }

    /// The stop string that was found.
    pub(crate) fn found(&self) -> Option<&str> {
        self.found.map(|index| &*self.stops[index])
    }

    /// Ends the stream and returns the pending text.
    pub(crate) fn finish(self) -> String {
        self.pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_all_but_the_stop_string() {
        for (stops, pieces, shown, stopped) in [
            (&["END"][..], &["ab", "cE", "N", "Dxy"][..], "abc", true),
            (&["END"], &["E", "E", "N", "F"], "EENF", false),
            (&["END"], &["xEN"], "xEN", false),
            (&["b", "ab"], &["xab"], "x", true),
            (&["é!"], &["caf", "é", "?"], "café?", false),
            (&[], &["all"], "all", false),
        ] {
            let stops: Vec<String> = stops.iter().map(|s| (*s).to_owned()).collect();
            let mut filter = StopFilter::new(&stops);
            let mut text = String::new();
            let found = pieces.iter().any(|piece| {
                let (show, stop) = filter.push(piece);
                text.push_str(&show);
                stop
            });
            if !found {
                text.push_str(&filter.finish());
            }
            assert_eq!((text.as_str(), found), (shown, stopped), "{stops:?}");
        }
    }
}
