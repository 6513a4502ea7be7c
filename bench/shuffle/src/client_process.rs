//! Processes of clients that a bench starts: it lets them go on by a line, and they say what they have done by lines.

use bench_gauge::say;
use bench_shuffle::check::Tally;
use std::io::{BufRead, BufReader, Error, Result, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

/// A process that says nothing for so long has failed: no run lasts for ever.
const SILENCE: Duration = Duration::from_secs(180);
/// Lines that were read and not looked at; behind them the process waits in its pipe.
const LINES: usize = 256;

/// The process of a client; it is ended when it is dropped.
pub struct ClientProcess {
    child: Child,
    tell: ChildStdin,
    lines: Receiver<String>,
}

impl ClientProcess {
    /// Starts it, and waits until it is ready; gives what it says then.
    pub fn start(command: &mut Command) -> Result<(ClientProcess, String)> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let none = || Error::other("a process has no pipe");
        let tell = child.stdin.take().ok_or_else(none)?;
        let said = BufReader::new(child.stdout.take().ok_or_else(none)?);
        let (send, lines) = sync_channel(LINES);
        std::thread::spawn(move || {
            // The thread ends with the process, or when the handle is gone that reads the lines.
            said.lines().map_while(Result::ok).try_for_each(|line| send.send(line))
        });
        let mut process = ClientProcess { child, tell, lines };
        let line = process.line()?;
        Ok((process, line))
    }

    /// The id of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets it go on.
    pub fn go(&mut self) -> Result<()> {
        self.tell.write_all(b"\n")
    }

    /// The next line that it says; an error if it has ended, or is silent for long.
    pub fn line(&mut self) -> Result<String> {
        let silent = || Error::other(format!("a process of a client says nothing for {SILENCE:?}"));
        self.line_within(SILENCE)?.ok_or_else(silent)
    }

    /// The same; none if it says nothing within that time.
    pub fn line_within(&mut self, within: Duration) -> Result<Option<String>> {
        match self.lines.recv_timeout(within) {
            Ok(line) => Ok(Some(line.trim().to_owned())),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Error::other("a process of a client has failed, and said why"))
            }
        }
    }

    /// Kills the process with SIGKILL. Gives the lines that it has said and that were not read yet.
    pub fn kill(mut self) -> Vec<String> {
        self.end();
        self.lines.iter().collect()
    }

    fn end(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        self.end();
    }
}

/// What the process does: says what it has done, and waits for a line on stdin.
pub fn ready(words: &str) -> Result<()> {
    say(words);
    std::io::stdin().read_line(&mut String::new()).map(drop)
}

/// As a word that [`tally_of`] reads.
pub fn word_of(tally: Tally) -> String {
    format!("{} {} {:032x}", tally.records, tally.bytes, tally.sum)
}

/// The tally of a line.
pub fn tally_of(line: &str) -> Option<Tally> {
    let mut words = line.split_ascii_whitespace();
    let (records, bytes) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(Tally { records, bytes, sum: u128::from_str_radix(words.next()?, 16).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_is_read_as_it_is_said() {
        let mut tally = Tally::default();
        tally.add(b"record");
        assert_eq!(tally_of(&word_of(tally)), Some(tally));
        assert_eq!(tally_of("1 2"), None);
    }

    #[test]
    fn lines_come_one_by_one_and_the_end_of_a_process_is_an_error() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo ready; read line; echo more; echo last"]);
        let (mut process, said) = ClientProcess::start(&mut command).unwrap();
        assert_eq!(said, "ready");
        assert_eq!(process.line_within(Duration::from_millis(20)).unwrap(), None);
        process.go().unwrap();
        assert_eq!(process.line().unwrap(), "more");
        assert_eq!(process.line().unwrap(), "last");
        assert!(process.line().is_err());
    }
}
