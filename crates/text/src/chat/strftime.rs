//! Python's `strftime` in UTC, for templates that tell the model the date.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Directives for numbers. A `-` before the letter (`%-d`) omits the padding.
const NUMBERS: &str = "YymdjHIMS";

/// Directives for names and composite formats; a `-` before the letter is ignored.
const NAMES: &str = "pBbAaFTZ%";

/// Formats `time` in UTC. Directives outside [`NUMBERS`] and [`NAMES`] are copied to the output unchanged.
pub(super) fn strftime(format: &str, time: Timestamp) -> String {
    let time = time.to_zoned(TimeZone::UTC);
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let directive = &rest[at + 1..];
        let bare = directive.strip_prefix('-').unwrap_or(directive);
        let letter = &bare[..bare.chars().next().map_or(0, char::len_utf8)];
        let padded = bare.len() == directive.len();
        let known = match letter {
            "" => None,
            _ if NUMBERS.contains(letter) && padded => Some(format!("%{letter}")),
            _ if NUMBERS.contains(letter) => Some(format!("%-{letter}")),
            _ if NAMES.contains(letter) => Some(format!("%{letter}")),
            _ => None,
        };
        match known {
            Some(known) => {
                out.push_str(&time.strftime(&known).to_string());
                rest = &bare[letter.len()..];
            }
            None => {
                out.push('%');
                rest = directive;
            }
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        // From Python's datetime in UTC.
        let cases = [
            (0, "%A %d %B %Y %T", "Thursday 01 January 1970 00:00:00"),
            (951_782_400, "%d %b %Y", "29 Feb 2000"),
            (951_868_800, "%F %j", "2000-03-01 061"),
            (
                1_735_689_599,
                "%a %-d %b %y, %I:%M:%S %p",
                "Tue 31 Dec 24, 11:59:59 PM",
            ),
            (4_107_542_400, "%F", "2100-03-01"),
            (1_000_000_000, "%H%% %q %", "01% %q %"),
            (1_000_000_000, "é%dé%-é", "é09é%-é"),
            (1_000_000_000, "%-j %-H %-I %y %Z", "252 1 1 01 UTC"),
            (1_000_000_000, "%-B %-% %-F", "September % 2001-09-09"),
        ];
        for (seconds, format, want) in cases {
            let time = Timestamp::from_second(seconds).unwrap();
            assert_eq!(strftime(format, time), want, "{seconds} {format}");
        }
    }

    #[test]
    fn the_first_and_last_moments_are_formatted() {
        assert_eq!(strftime("%F", Timestamp::MIN), "-9999-01-02");
        assert_eq!(strftime("%F %T", Timestamp::MAX), "9999-12-30 22:00:00");
    }
}
