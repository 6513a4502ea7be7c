//! Hints for words of `kubectl`, `etcdctl` and `rpk` that this command does not have: which command or flag does the same
//! here.

use clap::error::{ContextKind, ContextValue};

/// Commands, by the words that other programs have for them.
const COMMANDS: [(&[&str], &str); 16] = [
    (
        &["get", "list", "ls"],
        "`partage node list`, `keyspace list`, `shard list KEYSPACE`, `plan list`, `coordinator list`, `dataset status`",
    ),
    (
        &["describe", "show", "info"],
        "`partage node show NODE`, `keyspace show NAME`, `shard show KEYSPACE SHARD`, `plan show PLAN`",
    ),
    (
        &["cordon", "maintenance"],
        "`partage node drain NODE`: the node gets no shards and loses those that it has",
    ),
    (&["uncordon"], "`partage node undrain NODE`"),
    (&["drain"], "`partage node drain NODE`"),
    (&["create", "apply"], "`partage keyspace create NAME`"),
    (&["edit", "patch", "set", "scale"], "`partage keyspace update NAME`"),
    (&["delete", "rm"], "`partage keyspace delete NAME`, or `partage node remove NODE`"),
    (
        &["health", "endpoint", "cluster", "cluster-info", "member", "top"],
        "`partage status`, `partage node list`, `partage coordinator list`",
    ),
    (&["logs", "log", "history"], "`partage events`; each process writes its log to stderr"),
    (&["watch"], "`partage status --watch`"),
    (&["snapshot"], "`partage backup FILE`"),
    (
        &["put", "read", "write", "scan", "range", "produce", "consume"],
        "clients read and write by HTTP, at http://ROUTER/KEYSPACE/KEY; `partage dataset get DATASET KEY` reads from a dataset",
    ),
    (&["version"], "`partage --version`"),
    (&["topic", "namespace"], "`partage keyspace`: a keyspace holds the keys of one service"),
    (
        &["rebalance", "reassign"],
        "the coordinator balances by itself; `partage plan list` shows how, and `partage shard move` moves one shard",
    ),
];

/// Flags, by the names that other programs have for them.
const FLAGS: [(&[&str], &str); 5] = [
    (&["-o", "--output", "-w", "--write-out"], "`--json` prints data as JSON"),
    (
        &[
            "--endpoints",
            "--endpoint",
            "--server",
            "-s",
            "--brokers",
            "--hosts",
            "--host",
            "--addr",
            "--address",
        ],
        "`--coordinator HOST:PORT` names the coordinator, and a listener has its address from `--listen`",
    ),
    (
        &["-n", "--namespace", "--keyspace", "-t", "--topic"],
        "the keyspace is an argument without a flag, as in `partage shard list KEYSPACE`",
    ),
    (&["--force", "--assume-yes", "--no-confirm"], "`--yes` answers the question"),
    (
        &["--join", "--peers", "--initial-cluster"],
        "coordinators do not join each other: those with the same `--coordination` are one cluster; see `partage coordinator --help`",
    ),
];

/// The same error, with the command or flag that is probably meant.
#[must_use]
pub fn with_hint(mut error: clap::Error) -> clap::Error {
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.clone()),
        _ => None,
    };
    let hint = word(ContextKind::InvalidSubcommand)
        .and_then(|word| of(&COMMANDS, &word))
        .or_else(|| word(ContextKind::InvalidArg).and_then(|word| of(&FLAGS, &word)));
    if let Some(hint) = hint {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    }
    // A usage line has all that was given, and what the environment gives with it: as if one had to say that.
    if let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage) {
        let usage = usage.to_string();
        let told = FROM_ENVIRONMENT.iter().fold(usage.clone(), |usage, flag| usage.replace(flag, ""));
        if told != usage {
            error.insert(ContextKind::Usage, ContextValue::StyledStr(told.into()));
        }
    }
    error
}

/// Flags that most people give by the environment, as a usage line has them.
const FROM_ENVIRONMENT: [&str; 2] = [" --coordinator <COORDINATOR>", " --as <NAME>"];

fn of(table: &[(&[&str], &'static str)], word: &str) -> Option<&'static str> {
    let name = word.split(['=', ' ']).next().unwrap_or(word);
    table.iter().find(|(words, _)| words.contains(&name)).map(|(_, hint)| *hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::Parser;

    fn told(line: &str) -> String {
        with_hint(Cli::try_parse_from(line.split(' ')).unwrap_err()).to_string()
    }

    #[test]
    fn words_of_other_programs_lead_to_ours() {
        for (line, hint) in [
            ("partage get nodes", "tip: `partage node list`"),
            ("partage describe node n1", "tip: `partage node show NODE`"),
            ("partage cordon n1", "tip: `partage node drain NODE`"),
            ("partage topic list", "tip: `partage keyspace`"),
            ("partage rebalance", "tip: the coordinator balances by itself"),
            ("partage put a b", "tip: clients read and write by HTTP"),
            ("partage shard list -n kv", "tip: the keyspace is an argument"),
            ("partage node list -o yaml", "tip: `--json`"),
            ("partage status --endpoints 127.0.0.1:7400", "tip: `--coordinator HOST:PORT`"),
            ("partage coordinator --join 127.0.0.1:7400", "tip: coordinators do not join"),
        ] {
            assert!(told(line).contains(hint), "{line}: {}", told(line));
        }
        assert!(!told("partage frobnicate").contains("tip:"));
    }

    #[test]
    fn hints_are_for_words_that_are_no_commands_and_name_commands_that_are() {
        use clap::CommandFactory;
        let command = Cli::command();
        for word in COMMANDS.iter().flat_map(|(words, _)| *words) {
            assert!(command.find_subcommand(word).is_none(), "{word} is a command");
        }
        for hint in COMMANDS.map(|(_, hint)| hint) {
            let named = hint.split('`').skip(1).step_by(2).map(|text| text.trim_start_matches("partage "));
            for text in named {
                let mut at = &command;
                for word in text.split(' ').take_while(|word| word.chars().all(|c| c.is_ascii_lowercase())) {
                    at = at.find_subcommand(word).unwrap_or_else(|| panic!("{text}: {word} is no command"));
                }
            }
        }
    }
}
