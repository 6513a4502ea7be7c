//! One connection: it reads commands ahead, has several under way, and answers in order.
//!
//! ```text
//!  socket ─► input ─► command ─► under way (in order) ─► output ─► socket
//!                        │
//!                        └─ waits while one before it has its key, or it must be alone
//! ```
//!
//! Order is kept like this. A command on one key is begun at once, unless a command for the same key is under way and one of the
//! two writes: then it, and with it all behind it, waits until that one is answered. Every other command (several keys,
//! transactions, what changes the session) waits until all before it are answered, and none behind it begins before it is.
//! Answers are taken in the order in which commands were begun, whichever is done first.
//!
//! At its limits ([`limits`]) the connection begins and reads nothing more: commands under way, their bytes, and answers that the
//! client has not taken. An answer counts before it comes, with the size of recent answers.

use crate::command::{Handler, recognize};
use crate::execute;
use crate::limits;
use crate::reply::{Reply, Version};
use crate::request::{Arguments, Parsed, Parser, ProtocolError, TooMuch};
use crate::session::Session;
use futures::future::BoxFuture;
use futures::stream::{FuturesOrdered, StreamExt};
use futures::{FutureExt, future};
use partage_door::{AcceptedConnection, Door, Reservation};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::TcpStream;
use tokio::sync::watch;
use xxhash_rust::xxh3::xxh3_64;

/// Serves a connection to its end.
///
/// # Errors
/// The connection broke.
pub async fn serve(
    door: &Door,
    accepted: AcceptedConnection,
    session: Session,
    commands: &AtomicU64,
    mut stop: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let held = door.reserve(accepted.peer.ip());
    let mut connection = Connection {
        stream: &accepted.stream,
        session,
        commands,
        held,
        is_held: false,
        lacks_room: false,
        input: Vec::with_capacity(limits::READ_BYTES),
        begin: 0,
        parser: Parser::default(),
        output: Vec::new(),
        written: 0,
        under_way: FuturesOrdered::new(),
        pending: VecDeque::new(),
        pending_bytes: 0,
        expected: limits::EXPECTED_ANSWER_BYTES,
        is_ending: false,
        times: LookCounts::default(),
    };
    if accepted.is_in_reserve() {
        // The text that clients know.
        connection.output.extend_from_slice(b"-ERR max number of clients reached\r\n");
        return connection.write_all().await;
    }
    connection.run(door, &mut stop).await
}

/// A command that is under way.
struct PendingCommand {
    /// A hash of its key.
    key: u64,
    writes: bool,
    /// What it counts against [`limits::PIPELINE_BYTES`]: its own bytes, and those that its answer is expected to have.
    bytes: usize,
}

/// Why no command is begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// The connection waits for more of the next command.
    ForInput,
    /// For answers, or until the client has taken some.
    ForAnswers,
}

struct Connection<'a> {
    stream: &'a TcpStream,
    session: Session,
    commands: &'a AtomicU64,
    held: Reservation,
    is_held: bool,
    /// The process has no memory for what the connection keeps.
    lacks_room: bool,
    input: Vec<u8>,
    /// Where the next command begins in it.
    begin: usize,
    parser: Parser,
    output: Vec<u8>,
    /// So much of `output` is written to the client.
    written: usize,
    under_way: FuturesOrdered<BoxFuture<'static, (Reply, Version)>>,
    /// One for each of `under_way`, in the same order.
    pending: VecDeque<PendingCommand>,
    pending_bytes: usize,
    /// Bytes that an answer is expected to have.
    expected: usize,
    /// No more commands are taken.
    is_ending: bool,
    times: LookCounts,
}

/// For how many looks each state has lasted.
#[derive(Debug, Default)]
struct LookCounts {
    /// No command has come.
    idle: u32,
    /// A command has begun and is not complete.
    begun: u32,
    /// The client has taken nothing of what is to be written.
    unwritten: u32,
}

impl Connection<'_> {
    async fn run(&mut self, door: &Door, stop: &mut watch::Receiver<bool>) -> std::io::Result<()> {
        let mut looks = Box::pin(tokio::time::sleep(limits::LOOK));
        loop {
            let waits = self.begin_commands().await;
            self.take_answers();
            self.write_some()?;
            self.account();
            if self.is_ending && self.under_way.is_empty() && self.left() == 0 {
                return Ok(());
            }
            if waits == Waits::ForAnswers && self.under_way.is_empty() && !self.is_behind() {
                // Room for more commands has come.
                continue;
            }
            let (has_output, is_behind) = (self.left() > 0, self.is_behind());
            tokio::select! {
                biased;
                answer = self.under_way.next(), if !self.under_way.is_empty() && !is_behind => {
                    self.answered(answer);
                }
                writable = self.stream.writable(), if has_output => writable?,
                readable = self.stream.readable(), if waits == Waits::ForInput && !self.is_ending => {
                    readable?;
                    if !self.read()? {
                        // Its commands are still carried out, and it gets the answers if it has closed one side only.
                        self.is_ending = true;
                    }
                }
                _ = stop.wait_for(|stop| *stop), if !self.is_ending => self.is_ending = true,
                () = &mut looks => {
                    if self.is_overdue(door) {
                        return Ok(());
                    }
                    looks.as_mut().reset(tokio::time::Instant::now() + limits::LOOK);
                }
            }
        }
    }

    /// Called at every look: whether nothing has happened for too long.
    fn is_overdue(&mut self, door: &Door) -> bool {
        let times = &mut self.times;
        times.idle += 1;
        let is_longer = |looks: u32, limit: std::time::Duration| limits::LOOK * looks > limit;
        times.unwritten = if self.output.len() > self.written { times.unwritten + 1 } else { 0 };
        times.begun =
            if self.begin < self.input.len() || self.parser.has_begun() { times.begun + 1 } else { 0 };
        if is_longer(times.unwritten, limits::WRITE_TIME) {
            door.refuse_stalled();
            return true;
        }
        if !self.under_way.is_empty() {
            // The table ends commands that take too long.
            (times.idle, times.begun) = (0, 0);
            return false;
        }
        if is_longer(times.begun, limits::COMMAND_TIME) {
            door.refuse_slow_head();
            return true;
        }
        is_longer(times.idle, limits::IDLE)
    }

    /// Whether the client leaves so much of its answers that no more are made.
    fn is_behind(&self) -> bool {
        self.left() >= limits::PIPELINE_BYTES || self.lacks_room && self.left() > 0
    }

    /// Bytes that are not written yet.
    fn left(&self) -> usize {
        self.output.len() - self.written
    }

    /// Begins commands while it can; returns why it stops.
    async fn begin_commands(&mut self) -> Waits {
        let waits = loop {
            if self.is_ending {
                break Waits::ForInput;
            }
            let is_full = self.under_way.len() >= limits::PIPELINE_DEPTH
                || self.pending_bytes + self.left() >= limits::PIPELINE_BYTES
                || self.lacks_room;
            if is_full && (!self.under_way.is_empty() || self.left() > 0) {
                break Waits::ForAnswers;
            }
            match self.parser.parse(&self.input[self.begin..]) {
                Ok(Parsed::Incomplete { drop }) => {
                    self.begin += drop;
                    break Waits::ForInput;
                }
                Ok(Parsed::Nothing(bytes)) => self.next(bytes),
                Ok(Parsed::Command(bytes)) => {
                    if !self.begin_command(bytes).await {
                        break Waits::ForAnswers;
                    }
                    self.next(bytes);
                }
                Ok(Parsed::Dropped(bytes, why)) => {
                    self.session.refuse();
                    let reply = match why {
                        TooMuch::Budget => Reply::Error(format!("TRYAGAIN {why}")),
                        _ => Reply::error(why),
                    };
                    self.answer(reply);
                    self.next(bytes);
                }
                Err(error) => {
                    self.end(&error);
                    break Waits::ForInput;
                }
            }
        };
        if self.begin > 0 {
            self.input.drain(..self.begin);
            self.begin = 0;
        }
        waits
    }

    /// Goes on behind a command of so many bytes.
    fn next(&mut self, bytes: usize) {
        self.begin += bytes;
        self.parser.next_command();
        (self.times.idle, self.times.begun) = (0, 0);
        self.commands.fetch_add(1, Ordering::Relaxed);
    }

    /// Nothing that comes after this can be understood.
    fn end(&mut self, error: &ProtocolError) {
        self.answer(Reply::error(error));
        self.is_ending = true;
    }

    /// Begins a command, or says that it must wait.
    async fn begin_command(&mut self, bytes: usize) -> bool {
        let arguments = self.parser.arguments(&self.input[self.begin..]);
        let begun = if self.session.is_queueing() {
            CommandStart::Alone
        } else {
            begin(&mut self.session, arguments, &self.pending)
        };
        match begun {
            CommandStart::Alone if !self.under_way.is_empty() => return false,
            CommandStart::Waits => return false,
            CommandStart::Alone => {
                // It may take long: write the answers so far. An error comes again.
                let _ = write_some(self.stream, &self.output, &mut self.written);
                let reply = self.session.execute(arguments).await;
                self.is_ending |= self.session.is_over();
                reply.encode(self.session.version(), &mut self.output);
            }
            CommandStart::Done(reply) => self.answer(reply),
            CommandStart::UnderWay { key, writes, future } => {
                let bytes = bytes + self.expected;
                self.pending_bytes += bytes;
                self.pending.push_back(PendingCommand { key, writes, bytes });
                let version = self.session.version();
                self.under_way.push_back(future.map(move |reply| (reply, version)).boxed());
            }
        }
        true
    }

    /// A reply, behind all that are under way.
    fn answer(&mut self, reply: Reply) {
        let version = self.session.version();
        if self.under_way.is_empty() {
            reply.encode(version, &mut self.output);
            return;
        }
        let bytes = reply.bytes();
        self.pending_bytes += bytes;
        self.pending.push_back(PendingCommand { key: 0, writes: false, bytes });
        self.under_way.push_back(future::ready((reply, version)).boxed());
    }

    fn answered(&mut self, answer: Option<(Reply, Version)>) {
        let Some((reply, version)) = answer else { return };
        if let Some(pending) = self.pending.pop_front() {
            self.pending_bytes -= pending.bytes;
        }
        // Falls slowly, and rises at once.
        self.expected = (self.expected - self.expected / 8).max(reply.bytes());
        reply.encode(version, &mut self.output);
    }

    /// Takes the answers that have come.
    fn take_answers(&mut self) {
        while !self.under_way.is_empty() && self.left() < limits::WRITE_BYTES {
            match self.under_way.next().now_or_never() {
                Some(answer) => self.answered(answer),
                None => return,
            }
        }
    }

    /// Writes what the client takes now.
    fn write_some(&mut self) -> std::io::Result<()> {
        let before = self.written;
        write_some(self.stream, &self.output, &mut self.written)?;
        if self.written > before {
            self.times.unwritten = 0;
        }
        if self.left() == 0 {
            self.output.clear();
            self.output.shrink_to(2 * limits::WRITE_BYTES);
            self.written = 0;
        }
        Ok(())
    }

    async fn write_all(&mut self) -> std::io::Result<()> {
        while self.left() > 0 {
            self.write_some()?;
            if self.left() > 0 {
                let taken = tokio::time::timeout(limits::WRITE_TIME, self.stream.writable()).await;
                taken.map_err(|_| ErrorKind::TimedOut)??;
            }
        }
        Ok(())
    }

    /// Reads what has come; false at the end.
    fn read(&mut self) -> std::io::Result<bool> {
        self.input.reserve(limits::READ_BYTES);
        loop {
            match self.stream.try_read_buf(&mut self.input) {
                Ok(0) => return Ok(false),
                Ok(_) => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
        }
    }

    /// Counts what the connection keeps against the budget of the process, if that is much. Without room a command that
    /// has begun is dropped; output is kept, and nothing is begun until the client has taken it.
    fn account(&mut self) {
        if self.input.is_empty() && self.input.capacity() > limits::UNCOUNTED_BYTES {
            self.input = Vec::with_capacity(limits::READ_BYTES);
        }
        let bytes = self.input.capacity() + self.output.capacity() + self.pending_bytes;
        let is_much = bytes > limits::UNCOUNTED_BYTES;
        if !is_much && !self.is_held {
            self.lacks_room = false;
            return;
        }
        self.lacks_room = !self.held.set(if is_much { bytes } else { 0 });
        self.is_held = if self.lacks_room { self.is_held } else { is_much };
        if self.lacks_room && self.parser.has_begun() {
            self.parser.drop_command(TooMuch::Budget);
        }
    }
}

fn write_some(stream: &TcpStream, output: &[u8], written: &mut usize) -> std::io::Result<()> {
    while *written < output.len() {
        match stream.try_write(&output[*written..]) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(more) => *written += more,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// How a command begins.
enum CommandStart {
    /// The command has its answer at once.
    Done(Reply),
    /// The command is under way, and its answer comes later.
    UnderWay { key: u64, writes: bool, future: BoxFuture<'static, Reply> },
    /// One before it has its key.
    Waits,
    /// It is carried out when all before it are answered.
    Alone,
}

/// Begins a command on one key, if no other one is in its way.
fn begin(
    session: &mut Session,
    arguments: Arguments<'_>,
    under_way: &VecDeque<PendingCommand>,
) -> CommandStart {
    let command = match recognize(arguments) {
        Ok(command) => command,
        Err(refusal) => return CommandStart::Done(refusal),
    };
    let Handler::Rows(parse) = command.handler else { return CommandStart::Alone };
    if command.keys != (1, 1, 1) && arguments.len() > 2 {
        return CommandStart::Alone;
    }
    let (key, writes) = (xxh3_64(arguments.get(1)), command.writes());
    if under_way.iter().any(|pending| pending.key == key && (pending.writes || writes)) {
        return CommandStart::Waits;
    }
    let begun = session.table().cloned().and_then(|table| {
        let now_ms = table.now_ms();
        let rows = parse(arguments, now_ms)?;
        Ok((table, rows, now_ms))
    });
    match begun {
        Err(refusal) => CommandStart::Done(refusal),
        Ok((table, rows, now_ms)) => {
            if writes {
                session.last_written = rows.steps.last().map(|step| step.key.clone());
            }
            match execute::begin(table, rows, session.consistency(), now_ms) {
                execute::Started::Done(reply) => CommandStart::Done(reply),
                execute::Started::UnderWay(future) => CommandStart::UnderWay { key, writes, future },
            }
        }
    }
}
