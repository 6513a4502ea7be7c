//! What the first line of a commit looks like: `area: what`, in at most 72 characters, so that a list of them reads as a table.
//!
//! Checked from [`FIRST`] on: subjects before it are as they are. A checkout need not have a history (an unpacked archive, a
//! machine without git); then there is nothing to check, and the test says so.

use std::path::Path;
use std::process::Command;

/// The last commit that the rule does not ask about: subjects up to it were written before it was a test.
pub const FIRST: &str = "e555a77d32b3d0d18ed44ab73a25b6fe5deb24b1";

/// As in CONTRIBUTING.md: `git log --oneline` fits in 80 columns.
pub const LONGEST: usize = 72;

/// What git itself writes for a merge or a revert.
const OF_GIT: [&str; 2] = ["Merge ", "Revert \""];

/// One commit of the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The beginning of its hash.
    pub hash: String,
    /// The first line of its message.
    pub subject: String,
}

/// Every subject that is too long or does not begin with its area.
pub fn findings(commits: &[Commit]) -> Vec<String> {
    let mut found = Vec::new();
    for Commit { hash, subject } in commits {
        let length = subject.chars().count();
        if length > LONGEST {
            found.push(format!(
                "commit {hash}: its subject has {length} characters, more than {LONGEST}; say the rest in the body: {subject}"
            ));
        }
        if !OF_GIT.iter().any(|begin| subject.starts_with(begin)) && !has_area(subject) {
            found.push(format!(
                "commit {hash}: its subject is not of the form `area: what`, with a crate, docs, house or bench as the area: {subject}"
            ));
        }
    }
    found
}

/// `core: what`, `core, table: what`, `table tests: what`, `examples/kv: what`.
fn has_area(subject: &str) -> bool {
    let of_a_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_./".contains(c);
    subject.split_once(": ").is_some_and(|(areas, what)| {
        let mut words = areas.split(", ").flat_map(|area| area.split(' '));
        !what.trim().is_empty() && words.all(|word| !word.is_empty() && word.chars().all(of_a_name))
    })
}

/// The commits after [`FIRST`], newest first. A shallow clone that does not reach back to it has only later ones.
///
/// # Errors
/// Why there is nothing to check: no history lies here, git does not answer, or this history never had that commit.
pub fn history(root: &Path) -> Result<Vec<Commit>, String> {
    if !root.join(".git").exists() {
        return Err("there is no history here: this is no checkout of git".to_owned());
    }
    let is_known = git(root, &["cat-file", "-e", &format!("{FIRST}^{{commit}}")]).is_ok();
    let is_shallow = git(root, &["rev-parse", "--is-shallow-repository"])?.trim() == "true";
    if !is_known && !is_shallow {
        return Err(format!("the history here was never at {FIRST}, from which on subjects are checked"));
    }
    let range = if is_known { format!("{FIRST}..HEAD") } else { "HEAD".to_owned() };
    let text = git(root, &["log", "--format=%h %s", &range])?;
    Ok(text.lines().filter_map(commit).collect())
}

/// A line of `git log`: a hash, a blank, and a subject, which may be empty.
fn commit(line: &str) -> Option<Commit> {
    let (hash, subject) = line.split_once(' ')?;
    Some(Commit { hash: hash.to_owned(), subject: subject.to_owned() })
}

fn git(root: &Path, arguments: &[&str]) -> Result<String, String> {
    let told = Command::new("git").args(arguments).current_dir(root).output();
    let told = told.map_err(|error| format!("git does not start: {error}"))?;
    if told.status.success() {
        Ok(String::from_utf8_lossy(&told.stdout).into_owned())
    } else {
        Err(format!("git {}: {}", arguments.join(" "), String::from_utf8_lossy(&told.stderr).trim()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(subject: &str) -> Vec<String> {
        findings(&commit(&format!("0123abcd {subject}")).into_iter().collect::<Vec<_>>())
    }

    #[test]
    fn subjects_of_the_form_are_fine() {
        let longest = format!("core: {}", "ü".repeat(LONGEST - 6));
        for subject in [
            "core: what",
            "core, table: what: how",
            "table tests: what",
            "examples/kv: what",
            "Merge branch 'a'",
            "Revert \"Merge branch 'a'\"",
            &longest,
        ] {
            assert_eq!(found(subject), Vec::<String>::new(), "{subject}");
        }
    }

    #[test]
    fn a_subject_that_is_too_long_is_found() {
        let found = found(&format!("core: {}", "ü".repeat(LONGEST - 5)));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("commit 0123abcd: its subject has 73 characters"), "{}", found[0]);
    }

    #[test]
    fn a_subject_without_an_area_is_found() {
        for subject in ["what it does", "Core: what", "core:what", "core: ", "core,table: what", ": what", ""]
        {
            let found = found(subject);
            assert_eq!(found.len(), 1, "{subject}: {found:?}");
            assert!(found[0].contains("`area: what`"), "{}", found[0]);
        }
    }

    #[test]
    fn a_folder_without_a_history_says_so() {
        let none = history(Path::new("/")).expect_err("no checkout lies at the root of the file system");
        assert!(none.contains("no history"), "{none}");
    }
}
