//! Every limit of the dataset service, with its reason.

use std::time::Duration;

/// Connections at a time, of clients and peers together: a few kilobytes each, and below the files that a process may
/// have open by common settings of a service.
pub const CONNECTIONS: usize = 20_000;

/// Connections that wait for the thread they were given to. It takes them at once unless it waits for the disk.
pub const ARRIVALS: usize = 1_024;

/// Most threads of a server: more only wait for each other.
pub const THREADS: usize = 256;

/// Requests at a time that wait for peers. At 100 ms each this is 40,000 a second, if all time out.
pub const WAITING: usize = 4_096;

/// Requests of one connection that wait for peers side by side: a third of sixteen that were sent together, and a few more. Their
/// answers are all in memory.
pub const SIDE_BY_SIDE: usize = 8;

/// How long a client of HTTP/2 may take to answer a ping: what a bad mobile line needs, and no longer, since its connection is
/// one of [`CONNECTIONS`].
pub const PING: Duration = Duration::from_secs(10);

/// How long a client may take none of what is written to it. It holds a connection meanwhile, and maybe a version that
/// is to be removed.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a connection may ask nothing, unless told otherwise: clients that keep connections come back to them within
/// seconds, and one that was forgotten is one of [`CONNECTIONS`].
pub const IDLE: Duration = Duration::from_secs(60);

/// Times that a connection is looked at while it may ask nothing, so that it is closed by a quarter late at most. A look
/// each time that it asks would cost more than the answer.
pub const IDLE_CHECKS: u32 = 4;

/// How long what is being answered may go on when the server ends.
pub const CLOSING: Duration = Duration::from_millis(500);

/// What is read from a connection at a time: 16 pipelined requests of common size, and a whole multi-get of 100 keys.
pub const FAST_PATH_READ_BYTES: usize = 8 << 10;

/// What is read from a connection is counted against the memory of bodies when its buffer is longer than this: heads of
/// requests, and short lists of keys, are not worth the count.
pub const FAST_PATH_UNCOUNTED_BYTES: usize = 4 * FAST_PATH_READ_BYTES;

/// Answers are written when so many bytes of them are there, or when there is nothing more to be answered.
pub const FAST_PATH_WRITE_BYTES: usize = 64 << 10;

/// Longest head of a request for the fast path, which reads it anew whenever more of it has come. Longer ones are
/// hyper's, which takes [`HEAD_BYTES`].
pub const FAST_PATH_HEAD_BYTES: usize = 4 << 10;

/// Most headers of a request for the fast path: browsers send about 20.
pub const FAST_PATH_HEADERS: usize = 32;

/// Longest head of a request: a key of 64 KiB, nearly all of it escaped, does not fit into a URL of any library; what is
/// longer than 64 KiB is 414, and asked for by `POST`.
pub const HEAD_BYTES: usize = 256 << 10;

/// Longest body of a multi-get: [`MANY_KEYS`] keys of 1 KiB, and many shorter ones with JSON around them.
pub const MANY_BYTES: usize = 16 << 20;

/// Most keys of a multi-get (S17).
pub const MANY_KEYS: usize = 10_000;

/// Values below this are not compressed: headers and one packet more do not matter to the client then, and the
/// processor does.
pub const COMPRESSED_BYTES: usize = 1_024;

/// Values beyond this are not compressed: it would hold up the other connections of the thread for some hundredths of
/// a second. What is so long is better stored in a coding of its own.
pub const COMPRESSED_MOST_BYTES: usize = 4 << 20;

/// Longest head of a peer's answer, and most headers in it: it is ours, or that of Sequins.
pub const PEER_HEAD_BYTES: usize = 16 << 10;
/// See [`PEER_HEAD_BYTES`].
pub const PEER_HEADERS: usize = 32;

/// Longest body of a peer's answer: the longest value, and some values of a list beside it.
pub const PEER_BODY_BYTES: usize = partage_engine::limits::VALUE_BYTES + (16 << 20);

/// Idle connections to one peer that a thread keeps: as many as requests wait for it at a time, mostly.
pub const IDLE_PER_PEER: usize = 64;

/// Peers to which a thread keeps connections: more than clusters have nodes.
pub const PEERS_KEPT: usize = 1_024;

/// Keys of a multi-get that are answered together: enough that a request to a peer pays, few enough that the answer
/// begins at once and is never much in memory.
pub const MANY_TOGETHER: usize = 256;

/// Requests at a time on one connection of HTTP/2: what hyper recommends.
pub const STREAMS: u32 = 200;

/// Entries of a scan unless the request says how many.
pub const SCAN_ENTRIES: usize = 1_000;

/// Most entries of a scan: who wants more goes on after the last, and so may change the node.
pub const SCAN_MOST_ENTRIES: usize = 100_000;

/// Entries of one partition that a scan reads at a time, here or from a peer.
pub const SCAN_TOGETHER: usize = 256;

/// Parts of this size are sent of a scan, and a partition's entries are read ahead no further.
pub const SCAN_PART_BYTES: usize = 256 << 10;

/// How long a status page waits for what the other nodes say.
pub const STATUS_TIMEOUT: Duration = Duration::from_secs(1);

/// Most nodes that a status page asks: it is for people, and one node of more tells as much.
pub const STATUS_NODES: usize = 256;

/// Longest body of a multi-get for the fast path, which holds it whole: a thousand keys of common length.
pub const FAST_PATH_BODY_BYTES: usize = 64 << 10;

/// Longest answer to a multi-get by the fast path; longer ones are streamed.
pub const FAST_PATH_MANY_BYTES: usize = 1 << 20;

/// Bytes that are read from a file at a time: long enough that calls do not count, short enough to stay in a cache.
pub const READ_BYTES: usize = 256 << 10;

/// Longest record of a file as it is read, key and value with all around them. Twice what a store file takes, since
/// JSON writes a byte as up to six characters, but seldom; the store's own limit says then which of the two is too long.
pub const RECORD_BYTES: usize = 2 * (partage_engine::limits::KEY_BYTES + partage_engine::limits::VALUE_BYTES);

/// Longest record that is read however little memory a load has: less would refuse what is usual.
pub const LEAST_RECORD_BYTES: usize = 4 << 20;

/// Longest header of a page of a Parquet file: some numbers, and the least and the greatest value of the page, which its
/// writers cut off.
pub const PARQUET_HEADER_BYTES: u64 = 1 << 20;

/// A footer may take this part at most of the memory of a Parquet file: what it says takes a few times its length.
pub const PARQUET_FOOTER_SHARE: usize = 6;

/// Memory of a value of a list, or of a dictionary, beside its bytes.
pub const PARQUET_FIELD_BYTES: usize = 32;

/// Values of a column of a Parquet file that are read at a time, unless they are long.
pub const PARQUET_BATCH: usize = 1_024;

/// Longest name of a class, and key or value of the metadata, in a SequenceFile's header: longer ones are damage.
pub const SEQUENCE_NAME_BYTES: usize = 64 << 10;

/// Most metadata pairs in a SequenceFile's header: Hadoop itself writes none.
pub const SEQUENCE_METADATA: usize = 1_024;

/// Bytes of a dataset's settings: a page of text, and far from what would hurt.
pub const SETTINGS_BYTES: usize = 64 << 10;

/// How many folders of a dataset are named that are no versions: a person who sees some looks at the others.
pub const REFUSED_SHOWN: usize = 16;

/// How many peers with other files than the own source one line of the log names; the status names all.
pub const PEERS_LOGGED: usize = 8;

/// Most entries of one folder of a source: a version has one file for each partition, and thousands are many.
pub const SOURCE_ENTRIES: usize = 100_000;

/// How often `_SYMLINK` may lead on: a link to a link happens, a longer chain is a circle or a mistake.
pub const SYMLINKS: usize = 4;

/// Longest `_SYMLINK`: a name and a line end, and then some.
pub const SYMLINK_BYTES: u64 = 1_024;

/// How long a source may take to accept a connection: what a far region needs, three times over.
pub const CONNECT_TIME: Duration = Duration::from_secs(5);

/// How long a source may be silent within an answer: S3 itself takes seconds when it is busy.
pub const ANSWER_TIME: Duration = Duration::from_secs(20);

/// How often a request to a source is tried again, with growing pauses.
pub const RETRIES: usize = 5;

/// How long a request to a source is tried again; then the version waits for the next refresh.
pub const RETRY_TIME: Duration = Duration::from_secs(60);

/// How often the rest of a file is asked for without a byte having come.
pub const RESUMES: usize = 3;

/// How long a thread that reads may take to notice that no task waits for it any more.
pub const STOP_TIME: Duration = Duration::from_millis(50);

/// Pieces of a file that are fetched ahead of who reads it, of some ten KiB each.
pub const PIECES_AHEAD: usize = 16;

/// Files read, and store files written, at once: one reads while another sorts; more would take from who serves.
pub const BUILDS_AT_ONCE: usize = 2;

/// How much the threads that load give way (`nice`): where all cores are busy answering requests, a thread that loads gets
/// about a twentieth of a core, so two on a machine of two cores a tenth of one: enough not to starve. With 10, twice that,
/// the slowest hundredth of answers took a sixth longer meanwhile.
pub const LOAD_NICE: i32 = 13;

/// Memory of all builders of a load together; beyond it they spill.
pub const BUILD_MEMORY_BYTES: usize = 256 << 20;

/// Files that are looked into at once before a version is loaded: each is one small request.
pub const INSPECTED_AT_ONCE: usize = 16;

/// Keys that are looked at in each file: enough that two files that are mixed are told from two that are not
/// (2^-127), and with more files more so.
pub const SAMPLE_KEYS: usize = 128;

/// Records between two looks at a shared counter: seldom enough to cost nothing.
pub const RECORDS_COUNTED: u64 = 1_024;
/// What waits for a node's driver: it takes each in well under a millisecond, but for one write to the disk.
pub const INPUTS: usize = 1_024;

/// Before the coordination service is asked again that has failed: soon for people, seldom for a service that is busy
/// coming back.
pub const COORDINATION_PAUSE: Duration = Duration::from_secs(1);

/// How long a node that leaves waits for the end of its session: who hangs longer does not answer at all.
pub const LEAVE_FLUSH: Duration = Duration::from_secs(2);

/// How long a node that leaves waits for all of it: what it takes back, and the session.
pub const LEAVE: Duration = Duration::from_secs(5);

/// Versions whose files a node looks into at a time, to find out how they are divided: the first look at a source may find
/// thousands of datasets.
pub const INSPECTIONS_AT_ONCE: usize = 16;

/// Versions that a node loads at a time, of all datasets: one that goes on, and one that fails again and again.
pub const LOADS_AT_ONCE: usize = 2;

/// How long a node that was just started is not said to be without a coordinator: registering takes well under a second.
pub const REGISTERED: Duration = Duration::from_secs(10);

/// How often it is shown how far loads are: as often as people look.
pub const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Longest file of what a node remembers.
pub const REMEMBERED_BYTES: u64 = partage_wire::dataset::presence::REMEMBERED_BYTES;

/// How often one part of an answer is looked up at most while store files lose bytes meanwhile: two lookups find one file that
/// does, and a third another one.
pub const READ_ATTEMPTS: usize = 3;

/// The list of bad rows of one load: half a million of them, and one that is made of nothing else does not fill the disk.
pub const REJECT_BYTES: usize = 64 << 20;

/// Length of the parts in which a file is brought to an object store: S3 takes 10,000 of them, so 80 GB.
pub const UPLOAD_PART_BYTES: usize = 8 << 20;

/// Parts of one file on their way at once.
pub const UPLOAD_PARTS_AT_ONCE: usize = 2;

/// Files on their way at once: with their parts 64 MiB of memory.
pub const UPLOADS_AT_ONCE: usize = 4;

/// For how long a peer that let a stage pass is asked after the others: a node that is short of breath has it back by then,
/// and one that hangs costs one request in as many.
pub const SLOW_REST: Duration = Duration::from_secs(10);

/// How long a node gathers the shards that it is ordered to load before it begins: those of one plan come within it.
pub const ORDERS_GATHER: Duration = Duration::from_millis(20);
