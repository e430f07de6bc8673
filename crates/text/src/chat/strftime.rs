//! Python's `strftime` in UTC, for templates that tell the model the date.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// From the weekday of 1 January 1970 on.
const DAYS: [&str; 7] = [
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
];
const SECONDS_A_DAY: u64 = 86_400;

/// Seconds since 1970 began.
pub(super) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Writes the moment `seconds` after 1970 began; directives it does not know stay as they are.
pub(super) fn strftime(format: &str, seconds: u64) -> String {
    let date = Date::new(seconds / SECONDS_A_DAY);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let hour12 = (hour + 11) % 12 + 1;
    let half = if hour < 12 { "AM" } else { "PM" };
    let (month, weekday) = (MONTHS[date.month], DAYS[date.weekday]);
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let directive = &rest[at + 1..];
        let (bare, padded) = match directive.strip_prefix('-') {
            Some(bare) => (bare, false),
            None => (directive, true),
        };
        let number = |value: u64, width: usize| match padded {
            true => format!("{value:0width$}"),
            false => value.to_string(),
        };
        let letter = bare.chars().next();
        let written = match letter {
            Some('Y') => date.year.to_string(),
            Some('y') => number(date.year % 100, 2),
            Some('m') => number(date.month as u64 + 1, 2),
            Some('d') => number(date.day, 2),
            Some('j') => number(date.day_of_year, 3),
            Some('H') => number(hour, 2),
            Some('I') => number(hour12, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('p') => half.to_owned(),
            Some('B') => month.to_owned(),
            Some('b') => month[..3].to_owned(),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('F') => format!("{}-{:02}-{:02}", date.year, date.month + 1, date.day),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('%') => "%".to_owned(),
            _ => {
                out.push('%');
                rest = directive;
                continue;
            }
        };
        out.push_str(&written);
        rest = &bare[1..];
    }
    out + rest
}

/// A day of the Gregorian calendar.
struct Date {
    year: u64,
    /// From 0.
    month: usize,
    /// From 1.
    day: u64,
    /// From 1.
    day_of_year: u64,
    weekday: usize,
}

impl Date {
    /// The day `days` after 1 January 1970.
    fn new(days: u64) -> Self {
        let weekday = (days % 7) as usize;
        // 400 years are a whole number of days, so the walk over years stays short.
        const CYCLE: u64 = 146_097;
        let (mut year, mut left) = (1970 + days / CYCLE * 400, days % CYCLE);
        while left >= 365 + leap(year) {
            left -= 365 + leap(year);
            year += 1;
        }
        let day_of_year = left + 1;
        let lengths = [31, 28 + leap(year), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        let mut month = 0;
        while left >= lengths[month] {
            left -= lengths[month];
            month += 1;
        }
        Self {
            year,
            month,
            day: left + 1,
            day_of_year,
            weekday,
        }
    }
}

/// How many days the year has beyond 365.
fn leap(year: u64) -> u64 {
    u64::from(year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)))
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
        ];
        for (seconds, format, want) in cases {
            assert_eq!(strftime(format, seconds), want, "{seconds} {format}");
        }
    }

    #[test]
    fn the_end_of_time_is_a_date_too() {
        strftime("%F", u64::MAX);
    }
}
