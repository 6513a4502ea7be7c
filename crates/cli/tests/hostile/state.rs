//! Other users of the machine: they look into no folder with state, whatever its mode was before, and into all else as before.

use super::*;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// A folder with a mode that the caller's umask has no part in.
fn made(dir: &TempDir, name: &str, mode: u32) -> PathBuf {
    let folder = dir.path().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode)).unwrap();
    folder
}

fn coordinator(folder: &Path) -> Running {
    let arguments = ["--json", "coordinator", "--listen", "127.0.0.1:0", "--data-dir"];
    running(Command::new(PARTAGE).args(arguments).arg(folder))
}

/// A router, which needs no coordinator to begin.
fn router(maps: &str, within: &Path) -> Running {
    let arguments = ["--json", "router", "--listen", "127.0.0.1:0", "--join", "127.0.0.1:1", "--maps", maps];
    running(Command::new(PARTAGE).args(arguments).current_dir(within))
}

#[test]
fn a_data_directory_that_was_there_before_is_closed_by_each_role() {
    let dir = tempfile::tempdir().unwrap();
    let [of_coordinator, of_dataset, of_up] =
        ["coordinator", "dataset", "up"].map(|name| made(&dir, name, 0o755));
    let (store, source) = (made(&dir, "dataset/datasets", 0o755), made(&dir, "source", 0o755));
    let _coordinator = coordinator(&of_coordinator);
    let mut serve = Command::new(PARTAGE);
    serve.args(["--json", "dataset", "serve", "--listen", "127.0.0.1:0", "--source"]);
    let _dataset = running(serve.arg(&source).arg("--data-dir").arg(&of_dataset));
    let _up = running(
        Command::new(PARTAGE).args(["--json", "up", "--port", "0", "--nodes", "1", "--data-dir"]).arg(&of_up),
    );
    for folder in [&of_coordinator, &of_dataset, &store, &of_up] {
        assert_eq!(mode(folder), 0o700, "{}", folder.display());
    }
    assert_eq!(mode(&source), 0o755, "others write the versions");
}

#[test]
fn the_folder_of_the_maps_is_closed_where_nothing_else_is_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let [own, kept, shared, here] = ["own", "kept", "shared", "here"].map(|name| made(&dir, name, 0o755));
    std::fs::write(kept.join("maps"), "of before").unwrap();
    std::fs::write(shared.join("notes"), "of somebody").unwrap();
    for (folder, expected) in [(&own, 0o700), (&kept, 0o700), (&shared, 0o755)] {
        let _router = router(&folder.join("maps").display().to_string(), &here);
        assert_eq!(mode(folder), expected, "{}", folder.display());
    }
    for maps in ["maps".to_owned(), "./maps".to_owned(), here.join("maps").display().to_string()] {
        let _router = router(&maps, &here);
        assert_eq!(mode(&here), 0o755, "{maps}: somebody was in it when they started the router");
    }
}

#[test]
fn a_folder_of_others_stays_as_it_is_and_the_log_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let shared = made(&dir, "shared", 0o1777);
    let foreign = made(&dir, "foreign", 0o755);
    let mut folders = vec![(shared, 0o1777)];
    // Only root can give a folder away.
    if std::os::unix::fs::chown(&foreign, Some(1), None).is_ok() {
        folders.push((foreign, 0o755));
    }
    for (folder, expected) in folders {
        let coordinator = coordinator(&folder);
        assert_eq!(mode(&folder), expected, "{}", folder.display());
        let log = std::fs::read_to_string(coordinator.log.path()).unwrap();
        let named = log.lines().any(|line| {
            line.contains("stays open to other users") && line.contains(&folder.display().to_string())
        });
        assert!(named, "{log}");
    }
}
