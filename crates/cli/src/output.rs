//! What the terminal sees: data on stdout, everything else on stderr.
//!
//! A command's answer must survive `| jq` and `> file`, so nothing but data goes to stdout: no progress, no
//! greetings, no errors. People get lines and tables, programs get one JSON value a line with `--json`.
//!
//! Texts for people are printed with control characters spelled out ([`crate::terminal`]), whichever program wrote them; JSON and
//! data are printed as they are, but data of which a terminal is the reader.
//!
//! A reader that goes away (`| head`) is no failure: what is left is dropped, and the command ends as done.

use crate::terminal::{Drawing, shown};
use comfy_table::{ContentArrangement, Table, presets};
use partage_wire::json::ErrorBody;
use serde::Serialize;
use std::fmt;
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Stdout, Write};
use std::process::ExitCode;

/// A table for people: columns alone, so that what `awk` and `grep` read of it is the same.
pub fn table<'a>(header: impl IntoIterator<Item = &'a str>) -> Table {
    let mut table = Table::new();
    // Only where a terminal says how wide it is.
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.load_style(presets::NOTHING).set_header(header);
    if let Some(first) = table.column_mut(0) {
        first.set_padding((0, 1));
    }
    table
}

/// How a command can end when it does not end well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It was tried and did not work.
    Failed = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// No process answered at the address.
    NotReachable = 3,
    /// A process answered, and refuses.
    Refused = 4,
    /// It was begun, and is blocked, or not done within the time.
    NotDone = 5,
    /// A person has ended it with Ctrl-C.
    Interrupted = 130,
}

impl Exit {
    /// What programs read where nothing else refused it by a word of its own.
    fn word(self) -> &'static str {
        match self {
            Exit::Failed => "failed",
            Exit::Usage => "usage",
            Exit::NotReachable => "not_reachable",
            Exit::Refused => "refused",
            Exit::NotDone => "not_done",
            Exit::Interrupted => "interrupted",
        }
    }
}

/// Why a command did not end well, and the way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    exit: Exit,
    what: String,
    help: Option<String>,
    /// What the one who refused it calls it; none = as it ends.
    kind: Option<String>,
}

impl Failure {
    fn new(exit: Exit, what: impl fmt::Display) -> Failure {
        Failure { exit, what: what.to_string(), help: None, kind: None }
    }

    /// It was tried and did not work.
    pub fn failed(what: impl fmt::Display) -> Failure {
        Failure::new(Exit::Failed, what)
    }

    /// The command line makes no sense.
    pub fn usage(what: impl fmt::Display) -> Failure {
        Failure::new(Exit::Usage, what)
    }

    /// No process answered at the address.
    pub fn not_reachable(what: impl fmt::Display) -> Failure {
        Failure::new(Exit::NotReachable, what)
    }

    /// A process answered, and refuses.
    pub fn refused(what: impl fmt::Display) -> Failure {
        Failure::new(Exit::Refused, what)
    }

    /// It was begun, and is blocked, or not done within the time.
    pub fn not_done(what: impl fmt::Display) -> Failure {
        Failure::new(Exit::NotDone, what)
    }

    /// A person has ended it.
    pub fn interrupted(what: impl fmt::Display) -> Failure {
        Failure::new(Exit::Interrupted, what)
    }

    /// Whether no process answered at the address.
    pub fn is_not_reachable(&self) -> bool {
        self.exit == Exit::NotReachable
    }

    /// What is wrong, without the way out.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// The same, with the way out.
    #[must_use]
    pub fn help(mut self, help: impl fmt::Display) -> Failure {
        self.help = Some(help.to_string());
        self
    }

    /// The same, with the word that the coordinator has for it.
    #[must_use]
    pub fn kind(mut self, kind: impl fmt::Display) -> Failure {
        self.kind = Some(kind.to_string());
        self
    }

    /// Whether that is the word that who refused it has for it.
    pub fn is_kind(&self, kind: &str) -> bool {
        self.kind.as_deref() == Some(kind)
    }

    /// Says it on stderr, and gives the code to exit with.
    pub fn report(&self, json: bool) -> ExitCode {
        let text = if json {
            let kind = self.kind.as_deref().unwrap_or(self.exit.word());
            let help = self.help.as_deref().unwrap_or("");
            // A message ends with its way out, here as everywhere. What a server says is passed on as it is.
            let mut body = match self.kind {
                Some(_) => ErrorBody::new(kind, &self.what, help),
                None => ErrorBody::told(kind, &self.what, help),
            };
            body.error.exit_code = Some(self.exit as u8);
            String::from_utf8_lossy(&body.bytes()).into_owned()
        } else {
            shown(&self.to_string()).into_owned()
        };
        // A terminal that is gone shows nothing.
        let _ = writeln!(io::stderr(), "{text}");
        ExitCode::from(self.exit as u8)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.what)?;
        // What a server says ends with its way out already, which programs read as a member of its own.
        let mut unsaid = self.help.iter().filter(|help| !self.what.ends_with(help.as_str()));
        unsaid.try_for_each(|help| write!(f, "\n help: {help}"))
    }
}

/// What clap has to say: help and version on stdout with 0, mistakes on stderr with 2.
pub fn usage(error: &clap::Error, json: bool) -> ExitCode {
    if json && error.use_stderr() {
        return mistake(&error.to_string()).report(true);
    }
    // A terminal that is gone shows nothing.
    let _ = error.print();
    ExitCode::from(error.exit_code() as u8)
}

/// A mistake as clap words it for people: what is wrong, then hints and the usage.
fn mistake(text: &str) -> Failure {
    let (what, help) = text.split_once("\n\n").unwrap_or((text, ""));
    let line = |text: &str| {
        text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
    };
    let failure = Failure::usage(line(what.trim_start_matches("error: ")));
    let help: Vec<_> = help.split("\n\n").map(line).filter(|part| !part.is_empty()).collect();
    if help.is_empty() { failure } else { failure.help(help.join("; ")) }
}

/// One line to stderr, for people. A terminal that is gone shows nothing, and that is no failure.
pub fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{}", shown(text));
}

/// A question on stderr, and the line that a person answers.
///
/// # Errors
/// When stderr cannot be written, or stdin not be read.
pub fn ask(question: &str) -> io::Result<String> {
    let mut stderr = io::stderr();
    stderr.write_all(shown(question).as_bytes())?;
    stderr.flush()?;
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    Ok(line)
}

/// Writes the data of a command to stdout.
pub struct Output {
    json: bool,
    stdout: BufWriter<Stdout>,
    /// The first error of stdout; nothing is written after it.
    broken: Option<io::Error>,
}

impl Output {
    pub fn new(json: bool) -> Output {
        Output { json, stdout: BufWriter::new(io::stdout()), broken: None }
    }

    /// Whether `--json` was given.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// A line (or several) of data for people.
    pub fn text(&mut self, text: &str) {
        self.write(shown(text).as_bytes());
        self.write(b"\n");
    }

    /// A drawing for people.
    pub fn drawing(&mut self, drawing: &Drawing) {
        self.write(drawing.painted().as_bytes());
        self.write(b"\n");
    }

    /// Takes away what the terminal shows.
    pub fn clear(&mut self) {
        self.write(b"\x1b[2J\x1b[H");
    }

    /// Data as it is, for files and programs; a terminal is shown it as text.
    pub fn bytes(&mut self, bytes: &[u8]) {
        match self.stdout.get_ref().is_terminal() {
            true => self.write(shown(&String::from_utf8_lossy(bytes)).as_bytes()),
            false => self.write(bytes),
        }
    }

    /// A value for programs that is JSON already, on one line.
    pub fn json_text(&mut self, json: &str) {
        self.write(json.as_bytes());
        self.write(b"\n");
    }

    /// A value for programs, on one line.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let line = serde_json::to_vec(value)
            .map_err(|error| Failure::failed(format!("cannot write the answer as JSON: {error}")))?;
        self.write(&line);
        self.write(b"\n");
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) {
        if self.broken.is_none() {
            self.broken = self.stdout.write_all(bytes).err();
        }
    }

    /// Sends what was written so far, for commands that go on running.
    pub fn flush(&mut self) {
        if self.broken.is_none() {
            self.broken = self.stdout.flush().err();
        }
    }

    /// Whether the reader is gone, or nothing can be written.
    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Sends what was written. A reader that has gone is no failure; a full disk is.
    pub fn finish(&mut self) -> Result<(), Failure> {
        self.flush();
        match self.broken.take() {
            Some(error) if error.kind() != ErrorKind::BrokenPipe => {
                Err(Failure::failed(format!("cannot write to stdout: {error}")))
            }
            _ => Ok(()),
        }
    }
}
