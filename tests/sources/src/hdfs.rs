//! HDFS itself: a NameNode and a DataNode, from the jars that Hadoop makes for tests of clients.

use crate::tool;
use backends::process::Process;
use backends::{free_port, program, until};
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

/// The user that owns the files of HDFS. The tests read as another user.
const OWNER: &str = "hdfs";

/// Two servers that die with their handle.
#[derive(Debug)]
pub struct Hdfs {
    port: u16,
    folder: TempDir,
    name: Process,
    _data: Process,
}

impl Hdfs {
    /// Starts both servers, with no file in them.
    pub async fn start() -> Hdfs {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let property = |(name, value): (&str, String)| {
            format!("<property><name>{name}</name><value>{value}</value></property>")
        };
        let free = || "127.0.0.1:0".to_owned();
        let site: String = [
            ("fs.defaultFS", format!("hdfs://127.0.0.1:{port}")),
            ("hadoop.tmp.dir", folder.path().join("data").to_str().unwrap().to_owned()),
            ("dfs.replication", "1".to_owned()),
            ("dfs.namenode.http-address", free()),
            ("dfs.datanode.address", free()),
            ("dfs.datanode.http.address", free()),
            ("dfs.datanode.ipc.address", free()),
            // A file has several blocks at this size.
            ("dfs.blocksize", "1048576".to_owned()),
        ]
        .map(property)
        .concat();
        for name in ["core-site.xml", "hdfs-site.xml"] {
            let text = format!("<configuration>{site}</configuration>");
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let formatted = java(folder.path(), NAME_NODE, &["-format", "-nonInteractive"]).output().unwrap();
        said(&formatted);
        let server = |name, class| {
            Process::start(name, java(folder.path(), class, &[]), &folder.path().join(format!("{name}.log")))
        };
        let (name, data) = (server("namenode", NAME_NODE), server("datanode", DATA_NODE));
        let hdfs = Hdfs { port, folder, name, _data: data };
        until("the NameNode has its DataNode", || async {
            let log = hdfs.name.log();
            if log.contains("Adding a new node: ") { Ok(()) } else { Err("it has none".to_owned()) }
        })
        .await;
        hdfs
    }

    /// The URL of a folder.
    pub fn url(&self, prefix: &str) -> String {
        format!("hdfs://127.0.0.1:{}/{prefix}", self.port)
    }

    /// Puts a folder at `to`, by Hadoop's own shell.
    pub fn put_all(&self, folder: &Path, to: &str) {
        self.shell(&["-put", folder.to_str().unwrap(), &format!("/{to}")]);
    }

    /// Lets only its owner read what is at `path`.
    pub fn hide(&self, path: &str) {
        self.shell(&["-chmod", "-R", "700", &format!("/{path}")]);
    }

    fn shell(&self, words: &[&str]) {
        said(&java(self.folder.path(), "org.apache.hadoop.fs.FsShell", words).output().unwrap());
    }
}

const NAME_NODE: &str = "org.apache.hadoop.hdfs.server.namenode.NameNode";
const DATA_NODE: &str = "org.apache.hadoop.hdfs.server.datanode.DataNode";

/// A class of Hadoop's, with its configuration in `folder`.
fn java(folder: &Path, class: &str, words: &[&str]) -> Command {
    let debian =
        ["slf4j-api", "slf4j-simple", "commons-logging"].map(|jar| format!("/usr/share/java/{jar}.jar"));
    let jars = format!("{}/*", tool("hadoop").display());
    let path = [&[folder.to_str().unwrap().to_owned(), jars][..], &debian].concat().join(":");
    let mut command = Command::new(program("java", "default-jre-headless"));
    command.args(["-Xmx256m", "-cp", &path, class]).args(words).env("HADOOP_USER_NAME", OWNER);
    command
}

fn said(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
