//! Flipped bits, cut and lost files: each is refused with its name, and no table is created.

use crate::cluster::{Cluster, files, flip, noise};
use serde_json::json;

#[test]
fn d8_one_flipped_bit_in_any_kind_of_file_is_refused_with_the_name_of_the_file() {
    let cluster = Cluster::start(1);
    cluster.create(&["stock", "--replicas", "1", "--shards", "2"]);
    (0..20_u64).for_each(|n| cluster.put("stock", &n.to_be_bytes(), "", &noise(n, 2_000)));
    let id = cluster.backup("stock")["backup"].as_str().unwrap().to_owned();
    let (folder, root) = (cluster.folder(), cluster.path("backups"));
    let all = files(&root);
    assert_eq!(all.len(), 3, "two chunks and a manifest: {all:?}");
    for file in &all {
        let name = file.strip_prefix(&root).unwrap().to_str().unwrap();
        let whole = std::fs::read(file).unwrap();
        let damages: [(&str, &dyn Fn()); 3] = [
            ("flipped", &|| flip(file)),
            ("cut", &|| std::fs::write(file, &whole[..whole.len() - 1]).unwrap()),
            ("lost", &|| std::fs::remove_file(file).unwrap()),
        ];
        for (what, damage) in damages {
            damage();
            let is_lost_manifest = what == "lost" && name.starts_with("tables/");
            let said = cluster.table(&["restore", &folder, "copy", "--backup", &id]);
            let named = if is_lost_manifest { id.as_str() } else { name };
            said.refused(4, &[named]);
            let verified = cluster.table(&["backup", "verify", &folder]);
            assert_eq!(
                verified.code,
                Some(if is_lost_manifest { 0 } else { 4 }),
                "{what} {name}: {verified:?}"
            );
            assert_eq!(verified.out.contains(name), !is_lost_manifest, "{what} {name}: {verified:?}");
            assert_eq!(cluster.keyspaces(), ["stock"], "{what} {name}");
            std::fs::write(file, &whole).unwrap();
        }
    }
    // A later backup does not rest on a manifest that is damaged, nor on a chunk that is lost.
    flip(&all[2]);
    std::fs::remove_file(&all[0]).unwrap();
    let made = cluster.backup("stock");
    assert_eq!((&made["base"], &made["chunks_written"]), (&json!(null), &json!(1)));
    // One that flipped is found, and mended with --full.
    flip(&all[1]);
    cluster
        .table(&["backup", "verify", &folder, "--backup", made["backup"].as_str().unwrap()])
        .refused(4, &["1 file"]);
    let full = cluster.table(&["backup", "create", "stock", &folder, "--full"]).json();
    assert_eq!(full["chunks_written"], 2);
    cluster.table(&["backup", "verify", &folder, "--backup", full["backup"].as_str().unwrap()]).json();
    let listed = cluster.table(&["backup", "list", &folder]);
    let is_damaged = |one: &serde_json::Value| one["damaged"].is_string();
    assert_eq!(listed.json()["backups"].as_array().unwrap().iter().filter(|one| is_damaged(one)).count(), 1);
    // A file that was cut is written anew, as its length tells.
    let whole = std::fs::read(&all[0]).unwrap();
    std::fs::write(&all[0], &whole[..whole.len() - 1]).unwrap();
    let mended = cluster.backup("stock");
    assert_eq!(mended["chunks_written"], 1);
    cluster.table(&["backup", "verify", &folder, "--backup", mended["backup"].as_str().unwrap()]).json();
}
