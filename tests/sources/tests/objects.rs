//! Objects of backups, in a store that is reached over HTTP: what [`Source`] says of them in a folder holds there too.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use partage_dataset::source::{Source, SourceErrorKind};
use sources::s3::Moto;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_put_got_listed_and_deleted_in_s3() {
    let moto = Moto::start().await;
    let source = Source::open_objects(&moto.url("some/where"), &Moto::settings()).unwrap();
    assert_eq!(source.list_objects("chunks").await.unwrap(), []);
    for name in ["chunks/3f/one", "chunks/40/two", "tables/stock/20261128T065456.789Z-3f0c9a11"] {
        source.put_object(name, name.to_owned().into()).await.unwrap();
        source.put_object(name, name.to_owned().into()).await.unwrap();
        assert_eq!(source.get_object(name, 99).await.unwrap(), name);
        let there = source.put_new_object(name, "other".into()).await.unwrap_err();
        assert!(matches!(there.kind, SourceErrorKind::There), "{there}");
        assert_eq!(source.get_object(name, 99).await.unwrap(), name);
    }
    assert_eq!(source.get_object_range("chunks/3f/one", 7, 4).await.unwrap(), "3f/o");
    assert!(source.get_object_range("chunks/3f/one", 10, 9).await.is_err(), "it is shorter");
    source.put_new_object("tables/new", "x".into()).await.unwrap();
    let listed = |folder: &'static str| {
        let source = source.clone();
        async move {
            let objects = source.list_objects(folder).await.unwrap();
            let mut paths: Vec<_> = objects.into_iter().map(|object| (object.path, object.bytes)).collect();
            paths.sort();
            paths
        }
    };
    assert_eq!(listed("chunks").await, [("chunks/3f/one".to_owned(), 13), ("chunks/40/two".to_owned(), 13)]);
    let missing = source.get_object("chunks/3f/none", 9).await.unwrap_err();
    assert!(matches!(missing.kind, SourceErrorKind::NotThere), "{missing}");
    assert!(missing.to_string().contains("some/where/chunks/3f/none"), "{missing}");
    source.delete_object("tables/new").await.unwrap();
    source.delete_object("tables/new").await.unwrap();
    assert_eq!(listed("tables").await.len(), 1);
}
