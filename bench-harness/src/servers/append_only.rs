//! Where a server keeps its append-only file: one file in Redis 6.2, several with a list of them in 7.0 and later.

use std::io;
use std::path::{Path, PathBuf};

use super::RedisServer;

impl RedisServer {
    /// What the server wrote into its append-only file since it was started or since [`cut_append_only`](Self::cut_append_only).
    ///
    /// Everything of which a client has had the answer is there. After a rewrite (the option of that name turns it off) it is what was
    /// written since then.
    ///
    /// # Errors
    /// What the system says; `NotFound` if the server keeps no such file.
    pub fn append_only(&self) -> io::Result<Vec<u8>> {
        let mut whole = Vec::new();
        for file in files(&self.dir.path().join("data"))? {
            whole.append(&mut std::fs::read(file)?);
        }
        Ok(whole)
    }

    /// Empties the append-only file, between two commands: the server goes on at its end.
    ///
    /// What was there is lost to a restart.
    ///
    /// # Errors
    /// As [`append_only`](Self::append_only).
    pub fn cut_append_only(&self) -> io::Result<()> {
        // A server writes whole commands in one call, and at the end of the file wherever that is.
        for file in files(&self.dir.path().join("data"))? {
            std::fs::OpenOptions::new().write(true).open(file)?.set_len(0)?;
        }
        Ok(())
    }
}

/// The files to which a server appends what it does, oldest first, by the folder of its data; without those in which it keeps a
/// state of the past.
fn files(data: &Path) -> io::Result<Vec<PathBuf>> {
    let single = data.join(FILE);
    let folder = data.join(FOLDER);
    match std::fs::read_to_string(folder.join(format!("{FILE}.manifest"))) {
        Ok(manifest) => Ok(increments(&manifest).map(|name| folder.join(name)).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound && single.exists() => Ok(vec![single]),
        Err(error) => Err(error),
    }
}

/// The files of type `i` (incremental) that a manifest lists, a line each: `file NAME seq 1 type i`.
fn increments(manifest: &str) -> impl Iterator<Item = &str> {
    manifest.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let value = |name: &str| words.chunks_exact(2).find(|pair| pair[0] == name).map(|pair| pair[1]);
        (value("type") == Some("i")).then(|| value("file")).flatten()
    })
}

/// The default of `appendfilename`.
const FILE: &str = "appendonly.aof";

/// The default of `appenddirname`.
const FOLDER: &str = "appendonlydir";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_layouts_are_found_and_only_what_is_appended_to() {
        let data = tempfile::tempdir().unwrap();
        assert_eq!(files(data.path()).unwrap_err().kind(), io::ErrorKind::NotFound);
        // Redis 6.2.
        let single = data.path().join("appendonly.aof");
        std::fs::write(&single, "").unwrap();
        assert_eq!(files(data.path()).unwrap(), [single]);
        // Redis 7.0 and later, after a rewrite; the old file may still lie there after an upgrade.
        let folder = data.path().join("appendonlydir");
        std::fs::create_dir(&folder).unwrap();
        let manifest = "file appendonly.aof.2.base.rdb seq 2 type b\nfile appendonly.aof.1.incr.aof seq 1 type h\n\
                        file appendonly.aof.2.incr.aof seq 2 type i\nfile appendonly.aof.3.incr.aof seq 3 type i\n";
        std::fs::write(folder.join("appendonly.aof.manifest"), manifest).unwrap();
        let names = ["appendonly.aof.2.incr.aof", "appendonly.aof.3.incr.aof"];
        assert_eq!(files(data.path()).unwrap(), names.map(|name| folder.join(name)));
    }
}
