use super::*;
use proptest::prelude::*;
use resp_rs::resp2::Frame;

/// What a connection makes of some bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Heard {
    Command(Vec<Vec<u8>>),
    Dropped(TooMuch),
    Error(ProtocolError),
}

/// Feeds bytes in pieces that end at `cuts`; also gives the most bytes that were kept.
fn hear(bytes: &[u8], cuts: &[usize]) -> (Vec<Heard>, usize) {
    let (mut parser, mut heard) = (Parser::default(), Vec::new());
    let (mut input, mut most) = (Vec::new(), 0);
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    ends.push(bytes.len());
    ends.sort_unstable();
    let mut from = 0;
    for end in ends {
        input.extend_from_slice(&bytes[from..end]);
        from = end;
        most = most.max(input.len());
        loop {
            let used = match parser.parse(&input) {
                Err(error) => {
                    heard.push(Heard::Error(error));
                    return (heard, most);
                }
                Ok(Parsed::Incomplete { drop }) => {
                    input.drain(..drop);
                    break;
                }
                Ok(Parsed::Nothing(used)) => used,
                Ok(Parsed::Command(used)) => {
                    let arguments = parser.arguments(&input);
                    heard.push(Heard::Command(arguments.from(0).map(<[u8]>::to_vec).collect()));
                    used
                }
                Ok(Parsed::Dropped(used, why)) => {
                    heard.push(Heard::Dropped(why));
                    used
                }
            };
            input.drain(..used);
            parser.next_command();
        }
    }
    (heard, most)
}

fn whole(bytes: &[u8]) -> Vec<Heard> {
    hear(bytes, &[]).0
}

fn encoded(command: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
    for argument in command {
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn command() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..5)
}

/// Pieces that are nearly requests.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        6 => command().prop_map(|command| encoded(&command)),
        2 => prop::collection::vec(any::<u8>(), 0..8),
        2 => "[*$][0-9-]{1,4}\r\n".prop_map(String::into_bytes),
        2 => "[a-z \"'\\\\]{0,12}\r?\n".prop_map(String::into_bytes),
        1 => Just(b"*3000\r\n".to_vec()),
        1 => Just(b"$600000000\r\n".to_vec()),
        1 => Just(b"*1\r\n$2000000\r\nabc".to_vec()),
    ];
    let pieces = prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat());
    (pieces, prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3)).prop_map(
        |(mut bytes, changes)| {
            for (at, byte) in changes {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                }
            }
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn the_result_does_not_depend_on_the_cuts(
        bytes in mutated(),
        cuts in prop::collection::vec(any::<usize>(), 0..10),
    ) {
        let expected = whole(&bytes);
        prop_assert_eq!(&hear(&bytes, &cuts).0, &expected);
        let each: Vec<usize> = (0..=bytes.len()).collect();
        prop_assert_eq!(&hear(&bytes, &each).0, &expected);
    }

    #[test]
    fn commands_are_read_as_another_reader_reads_them(commands in prop::collection::vec(command(), 1..5)) {
        let bytes: Vec<u8> = commands.iter().flat_map(|command| encoded(command)).collect();
        let ours: Vec<Heard> = commands.iter().cloned().map(Heard::Command).collect();
        prop_assert_eq!(whole(&bytes), ours);
        let mut rest = bytes::Bytes::from(bytes);
        for command in commands {
            let (frame, behind) = resp_rs::resp2::parse_frame(rest).unwrap();
            let strings = command.into_iter().map(|argument| Frame::BulkString(Some(argument.into())));
            prop_assert_eq!(frame, Frame::Array(Some(strings.collect())));
            rest = behind;
        }
    }

    #[test]
    fn numbers_are_those_that_print_so(text in "-?[0-9]{1,20}|[ +-]?[0-9a]{0,3}") {
        let parsed: Option<i64> = text.parse().ok().filter(|number: &i64| number.to_string() == text);
        prop_assert_eq!(number(text.as_bytes()), parsed);
    }
}

#[test]
fn lying_lengths_are_definite_errors() {
    let cases: [(&[u8], ProtocolError); 14] = [
        (b"*a\r\n", ProtocolError::Count),
        (b"*99999999999999999999\r\n", ProtocolError::Count),
        (b"*1048577\r\n", ProtocolError::Count),
        (b"*+1\r\n", ProtocolError::Count),
        (b"*1\r\n$-1\r\n", ProtocolError::Length),
        (b"*1\r\n$536870913\r\n", ProtocolError::Length),
        (b"*1\r\n$9223372036854775807\r\n", ProtocolError::Length),
        (b"*1\r\n$18446744073709551616\r\n", ProtocolError::Length),
        (b"*1\r\n$\r\n", ProtocolError::Length),
        (b"*1\r\n:1\r\n", ProtocolError::NoString(b':')),
        (b"*2\r\n$1\r\na\r\n*1\r\n", ProtocolError::NoString(b'*')),
        (b"*1\r\n$1\r\nabc", ProtocolError::NoEnd),
        (b"*11111111111111111111111111111111", ProtocolError::LongLine),
        (b"GET \"a\r\n", ProtocolError::Quotes),
    ];
    for (bytes, expected) in cases {
        assert_eq!(whole(bytes), [Heard::Error(expected)], "{}", bytes.escape_ascii());
    }
    let long = vec![b'a'; limits::LINE_BYTES];
    assert_eq!(whole(&long), [Heard::Error(ProtocolError::LongInline)]);
    assert_eq!(whole(&long[1..]), []);
}

#[test]
fn empty_lines_and_arrays_are_nothing() {
    assert_eq!(whole(b"\r\n\n*0\r\n*-1\r\n*-5\r\nPING\r\n"), [Heard::Command(vec![b"PING".to_vec()])]);
}

#[test]
fn what_is_beyond_the_limits_is_dropped_and_what_follows_is_heard() {
    let ping = encoded(&[b"PING".to_vec()]);
    let pong = Heard::Command(vec![b"PING".to_vec()]);
    let longest = vec![7; partage_core::limits::VALUE_BYTES];
    let set = vec![b"SET".to_vec(), vec![1; partage_core::limits::KEY_BYTES], longest];
    assert_eq!(whole(&[encoded(&set), ping.clone()].concat()), [Heard::Command(set), pong.clone()]);

    let long = [encoded(&[b"SET".to_vec(), b"a".to_vec(), vec![7; 8 << 20]]), ping.clone()].concat();
    let cuts: Vec<usize> = (0..long.len()).step_by(5_000).collect();
    let (heard, most) = hear(&long, &cuts);
    assert_eq!(heard, [Heard::Dropped(TooMuch::Bytes), pong.clone()]);
    assert!(most <= 10_000, "{most} bytes were kept of a command that is dropped");

    let most_arguments = vec![b"a".to_vec(); limits::ARGUMENTS];
    assert_eq!(whole(&encoded(&most_arguments)), [Heard::Command(most_arguments)]);
    let many = [encoded(&vec![b"a".to_vec(); limits::ARGUMENTS + 1]), ping].concat();
    let why = TooMuch::Arguments(limits::ARGUMENTS as u64 + 1);
    assert_eq!(whole(&many), [Heard::Dropped(why), pong]);
}

#[test]
fn what_is_announced_takes_no_memory() {
    let (_, most) = hear(b"*1000000\r\n$500000000\r\n", &[]);
    assert!(most < 100);
    let mut parser = Parser::default();
    assert_eq!(parser.parse(b"*2048\r\n$1000000\r\nab"), Ok(Parsed::Incomplete { drop: 0 }));
    assert!(parser.has_begun() && parser.places.capacity() < 100);
    // Without room for the command it is dropped to its end.
    parser.drop_command(TooMuch::Budget);
    assert_eq!(parser.parse(b"*2048\r\n$1000000\r\nab"), Ok(Parsed::Incomplete { drop: 19 }));
    assert_eq!(parser.parse(&[7; 999_000]), Ok(Parsed::Incomplete { drop: 999_000 }));
}
