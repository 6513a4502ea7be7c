//! The pool of shuffles of `up`: its user types what is printed.

use super::{Up, partage};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// What `up` prints about shuffles.
fn printed_about_shuffles(up: &mut Up) -> Vec<String> {
    let printed = BufReader::new(up.process.stdout.take().unwrap()).lines().map(Result::unwrap);
    let printed = printed.take_while(|line| !line.contains("Ctrl-C stops"));
    printed.skip_while(|line| !line.starts_with("A shuffle takes")).collect()
}

/// The commands of these lines.
fn commands(printed: &[String]) -> Vec<String> {
    let commands = printed.iter().filter_map(|line| line.strip_prefix("  "));
    commands.map(|line| line.split("  ").next().unwrap().trim().to_owned()).collect()
}

/// Types a command as it is printed, in a folder, and says what it has printed.
fn typed_in(folder: &Path, command: &str) -> String {
    let binary = env!("CARGO_BIN_EXE_partage");
    let script = format!("partage() {{ {binary} \"$@\"; }}\n{command}");
    let output = Command::new("bash").args(["-uc", &script]).current_dir(folder).output().unwrap();
    let said = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said).into_owned());
    assert!(output.status.success(), "$ {command}\n{}", said.concat());
    said.concat()
}

/// The lines of all files of a folder, in the order of their names, and how many each file has.
fn lines_of(folder: &Path) -> (Vec<String>, Vec<usize>) {
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let texts: Vec<String> = files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    let lines = texts.iter().flat_map(|text| text.lines().map(str::to_owned)).collect();
    (lines, texts.iter().map(|text| text.lines().count()).collect())
}

/// The commands that `up` prints about shuffles, each as it stands there: what they sort is checked by a sort of the test's own.
#[test]
fn files_are_sorted_by_the_printed_command_also_while_a_node_is_dead_and_after_it_is_back() {
    let data = tempfile::tempdir().unwrap();
    let (up_data, work) = (data.path().join("up"), data.path().join("work"));
    std::fs::create_dir(&work).unwrap();
    let mut command = partage();
    command.args(["up", "--port", "0", "--empty-table", "--data-dir"]).arg(&up_data);
    let mut up = Up {
        process: command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap(),
        at: Value::Null,
    };
    let printed = printed_about_shuffles(&mut up);
    let commands = commands(&printed);
    let [sort, count, kill, again, same, add, list] = commands.as_slice() else { panic!("{commands:#?}") };

    // What a client of Arrow Flight is to ask is one of the nodes that the commands name.
    let flight = printed.iter().find_map(|line| line.split_once("at grpc+tcp://")).unwrap().1;
    assert!(sort.contains(flight.split(',').next().unwrap()), "{sort}\n{flight}");

    typed_in(&work, sort);
    let size = |line: &String| serde_json::from_str::<Value>(line).unwrap()["size_bytes"].as_u64().unwrap();
    let (mut expected, _) = lines_of(&up_data.join("datasets/source/packages/day-2"));
    expected.sort_by_cached_key(|line| std::cmp::Reverse(size(line)));
    let (sorted, counts) = lines_of(&work.join("sorted"));
    assert_eq!(counts, [21_145, 21_145, 21_146]);
    assert!(sorted == expected, "the lines of the parts are not those of the files in their order");
    assert!(typed_in(&work, count).contains("63436 total"));

    assert!(typed_in(&work, kill).contains("s2 is dead"));
    typed_in(&work, again);
    assert_eq!(typed_in(&work, same), "");
    assert!(typed_in(&work, add).contains("s2 is up at"));
    // The node that is back has its files, and the pool goes on with it.
    typed_in(&work, &sort.replace("-o sorted", "-o back"));
    assert!(lines_of(&work.join("back")).0 == sorted, "a sort differs once the node is back");
    typed_in(&work, list);
    let kept = std::fs::read_dir(up_data.join("shuffles")).unwrap().count();
    assert_eq!(kept, 3, "each node of the pool has a folder in --data-dir");
}
