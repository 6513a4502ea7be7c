//! A source as a batch job leaves it, with what lies about beside.

use std::fs;
use std::path::Path;

/// Pairs in the version.
pub const KEYS: u32 = 3_000;

/// Its files. The names are what a URL and a signature are apt to get wrong.
pub const FILES: [&str; 3] = ["part 0+ä.tsv", "part-1%41&=~.tsv", "part-2.tsv"];

/// The value of a key, some hundred bytes: so a file takes more than one read.
pub fn value(number: u32) -> String {
    format!("value {number} of {}", "some length ".repeat(40))
}

/// The key with this number, which is below [`KEYS`] if the version has it.
pub fn key(number: u32) -> String {
    format!("key-{number}")
}

/// Dataset `words` with version `1`, and `2` which is the same; `3` is not finished. Datasets of no name, files that are
/// none of a version.
pub fn write(source: &Path) {
    let words = source.join("words");
    for folder in ["1", "1/_temporary", "2", "3"] {
        fs::create_dir_all(words.join(folder)).unwrap();
    }
    for (number, name) in FILES.iter().enumerate() {
        let mine = (0..KEYS).filter(|key| *key as usize % FILES.len() == number);
        let lines: String = mine.map(|number| format!("{}\t{}\n", key(number), value(number))).collect();
        fs::write(words.join("1").join(name), lines).unwrap();
    }
    fs::write(words.join("1/_SUCCESS"), "done").unwrap();
    fs::write(words.join("1/.part-0.crc"), "x").unwrap();
    fs::write(words.join("1/_temporary/part-3.tsv"), "key-0\twrong\n").unwrap();
    fs::write(words.join("2/_SYMLINK"), "1\n").unwrap();
    fs::write(words.join("2/_SUCCESS"), "done").unwrap();
    fs::write(words.join("3/_begun"), "x").unwrap();
    fs::write(words.join("_dataset.toml"), "layout = \"hashed\"\n").unwrap();
    fs::create_dir_all(source.join("no name/1")).unwrap();
    fs::write(source.join("no name/1/part-0"), "x").unwrap();
    fs::write(source.join("loose"), "x").unwrap();
}
