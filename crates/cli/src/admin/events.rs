//! `partage events`: what changed, when, why and by whom.

use crate::client::ApiClient;
use crate::http::segment;
use crate::output::{Failure, Output, say};
use crate::role::StopSignals;
use clap::Args;
use partage_clock::unix_ms;
use partage_wire::json::{Event, EventActor, Events};
use std::time::Duration;

/// Rest between two questions of `--follow`.
const FOLLOW: Duration = Duration::from_secs(1);

/// The most events that the coordinator gives at once.
const MOST: usize = 10_000;

/// The arguments of `partage events`.
#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Print new events as they happen, until Ctrl-C
    #[arg(long, short)]
    follow: bool,
    /// Show only events newer than this, such as 30s, 15m, 1h or 2d
    #[arg(long, value_name = "WHILE", value_parser = span)]
    since: Option<Duration>,
    /// Show only events of this keyspace
    #[arg(long, value_name = "NAME")]
    keyspace: Option<String>,
    /// Show only events of this node
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Maximum number of latest events to show, 1 to 10000 [default: 100, with --since 10000]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=MOST as u64))]
    limit: Option<u64>,
    #[command(flatten)]
    client: ApiClient,
}

/// A while, as people write it.
pub fn span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no while: give such as 30s, 15m, 1h or 2d");
    let (number, unit_s) = match text.char_indices().next_back() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 3_600),
        Some((at, 'd')) => (&text[..at], 86_400),
        Some(_) | None => return Err(wrong()),
    };
    let seconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_s));
    seconds.map(Duration::from_secs).ok_or_else(wrong)
}

impl EventsArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let limit = self.limit.unwrap_or(if self.since.is_some() { MOST as u64 } else { 100 });
        let since = self.since.map(|while_| unix_ms().saturating_sub(while_.as_millis() as u64));
        let since = since.map(|ms| format!("&since_ms={ms}")).unwrap_or_default();
        let told: Events = self.client.get(&self.path(&format!("limit={limit}{since}"))).await?;
        if told.events.is_empty() && !self.follow {
            self.look_for_names().await?;
            if !output.is_json() {
                output.text("nothing has happened");
            }
        }
        print(output, &told.events)?;
        if told.more {
            say("there are earlier ones: ask for more with --limit, up to 10000");
        }
        if !self.follow {
            return Ok(());
        }
        output.flush();
        StopSignals::listen()?.unless_asked(self.go_on(output, told.next)).await.unwrap_or(Ok(()))
    }

    fn path(&self, more: &str) -> String {
        let of = |name: &str, value: &Option<String>| {
            value.as_ref().map(|value| format!("&{name}={}", segment(value))).unwrap_or_default()
        };
        format!("/v1/events?{more}{}{}", of("keyspace", &self.keyspace), of("node", &self.node))
    }

    /// Nothing is known of a name: is there such a thing?
    async fn look_for_names(&self) -> Result<(), Failure> {
        if let Some(name) = &self.keyspace {
            let _: serde_json::Value = self.client.get(&format!("/v1/keyspaces/{}", segment(name))).await?;
        }
        if let Some(name) = &self.node {
            let _: serde_json::Value =
                self.client.get(&format!("/v1/nodes/{}?limit=1", segment(name))).await?;
        }
        Ok(())
    }

    async fn go_on(&self, output: &mut Output, mut next: String) -> Result<(), Failure> {
        let mut is_away = false;
        loop {
            let path = self.path(&format!("limit={MOST}&after={next}"));
            match self.client.get::<Events>(&path).await {
                Ok(told) => {
                    is_away = false;
                    print(output, &told.events)?;
                    output.flush();
                    next = told.next;
                    if output.is_broken() {
                        return Ok(());
                    }
                }
                // The next leader knows of them, too.
                Err(failure) if failure.is_not_reachable() => {
                    if !is_away {
                        say(&format!("{}; asking again", failure.what()));
                    }
                    is_away = true;
                }
                Err(failure) => return Err(failure),
            }
            tokio::time::sleep(FOLLOW).await;
        }
    }
}

fn print(output: &mut Output, events: &[Event]) -> Result<(), Failure> {
    for event in events {
        match output.is_json() {
            true => output.json(event)?,
            false => output.text(&line(event)),
        }
    }
    Ok(())
}

/// One event: when, what sort, who, what and why.
fn line(event: &Event) -> String {
    let by = match &event.by {
        Some(name) if event.actor.is(EventActor::Person) => name.clone(),
        Some(name) => format!("node {name}"),
        None => event.actor.to_string(),
    };
    let mark = if event.alarm { "ALARM " } else { "" };
    let line = format!("{}  {:<16}  {by:<11}  {mark}{}", time(event.at_ms), event.kind, event.text);
    line.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
}

/// A moment of Unix time as a date and a time of day, in UTC.
pub fn time(unix_ms: u64) -> String {
    let (days, second) = (unix_ms / 86_400_000, unix_ms / 1_000 % 86_400);
    // Years that begin in March end with the leap day; 400 of them have as many days as any 400 others.
    let since_march = days + 719_468;
    let (era, day) = (since_march / 146_097, since_march % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (date, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    format!("{year}-{month:02}-{date:02}T{hour:02}:{minute:02}:{:02}Z", second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_709_164_799, "2024-02-28T23:59:59Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(time(seconds * 1_000), text);
        }
    }

    #[test]
    fn a_while_is_read_as_people_write_it() {
        for (text, seconds) in [("30s", 30), ("15m", 900), ("1h", 3_600), ("2d", 172_800), ("0s", 0)] {
            assert_eq!(span(text), Ok(Duration::from_secs(seconds)));
        }
        for wrong in
            ["", "h", "5", "1w", "-1h", "1.5h", "99999999999999999999d", "18446744073709551615d", "1é"]
        {
            assert!(span(wrong).unwrap_err().contains("15m"), "{wrong}");
        }
    }

    #[test]
    fn a_line_says_who_and_hides_what_a_terminal_would_obey() {
        let text = r#"{"term":1,"number":2,"at_ms":0,"kind":"brake_set","alarm":true,"actor":"person","by":"al\u001bice","text":"x"}"#;
        let said = line(&serde_json::from_str(text).unwrap());
        assert_eq!(said, "1970-01-01T00:00:00Z  brake_set         al\u{fffd}ice       ALARM x");
    }
}
