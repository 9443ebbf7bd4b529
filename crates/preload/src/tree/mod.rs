//! The tree of `/sys` and `/dev` entries of our devices, and how a path is walked through it.
//!
//! In here: data and path walking. Out of here: where the devices come from, what a C program calls.

mod content;

pub use content::TreeSource;

/// An entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Node {
    /// A directory that is ours alone: what isn't in it doesn't exist.
    Directory(Vec<(String, Node)>),
    /// A directory of the machine, in which some entries are ours.
    Passage(Vec<(String, Node)>),
    /// An attribute and its text.
    File(String),
    /// An attribute whose text is what has been counted when it is opened.
    Counter {
        /// The device's name.
        device: String,
        /// Which of its directories it is in.
        set: CounterSet,
        /// Its name there.
        name: &'static str,
    },
    /// An attribute without a value: it exists, and reading it is EINVAL, as for an empty entry of a GID table.
    NoValue,
    /// A symbolic link.
    Link(String),
    /// A character device.
    Device {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
        /// Whether a program may open it: it then gets `/dev/null`.
        opens: bool,
    },
}

/// A directory of counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CounterSet {
    /// `counters`: those that InfiniBand defines for ports.
    Port,
    /// `hw_counters`: those of the transport.
    Hardware,
}

/// Where a path leads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PathTarget<'tree> {
    /// To an entry of ours, and its path without links.
    Ours(Vec<u8>, &'tree Node),
    /// Out of the tree: the path of it that the system knows.
    Elsewhere(Vec<u8>),
}

/// An entry of the tree that a call is about.
pub struct FoundNode<'a> {
    /// Its path without links.
    pub path: &'a [u8],
    /// The entry.
    pub node: &'a Node,
}

/// What to do with a link at a path's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Last {
    /// Follow it.
    Follow,
    /// Take the link itself.
    Keep,
}

/// Links that a path may lead through (as the kernel has it).
const MAX_LINKS: u32 = 40;

/// All entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tree {
    root: Node,
}

impl Node {
    /// The entries of a directory; `None` for anything else.
    #[must_use]
    pub fn entries(&self) -> Option<&[(String, Node)]> {
        match self {
            Self::Directory(entries) | Self::Passage(entries) => Some(entries),
            _ => None,
        }
    }

    fn child(&self, name: &[u8]) -> Option<&Node> {
        self.entries()?.iter().find(|(entry, _)| entry.as_bytes() == name).map(|(_, node)| node)
    }
}

fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".")
}

impl Tree {
    /// Walks an absolute path.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR or ELOOP, as the kernel would.
    pub fn walk(&self, path: &[u8], last: Last) -> Result<PathTarget<'_>, i32> {
        let must_be_directory = path.ends_with(b"/") || path.ends_with(b"/.");
        let follow_last = last == Last::Follow || must_be_directory;
        // Names still to be walked, the next one last.
        let mut ahead: Vec<&[u8]> = components(path).rev().collect();
        let mut behind: Vec<(&[u8], &Node)> = Vec::new();
        let mut links = 0;
        while let Some(name) = ahead.pop() {
            let here = behind.last().map_or(&self.root, |(_, node)| node);
            if here.entries().is_none() {
                return Err(libc::ENOTDIR);
            }
            if name == b".." {
                behind.pop();
                continue;
            }
            match here.child(name) {
                Some(Node::Link(target)) if !ahead.is_empty() || follow_last => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(libc::ELOOP);
                    }
                    if target.starts_with('/') {
                        behind.clear();
                    }
                    ahead.extend(components(target.as_bytes()).rev());
                }
                Some(child) => behind.push((name, child)),
                None if matches!(here, Node::Passage(_)) => {
                    let mut way = joined(&behind);
                    for name in std::iter::once(name).chain(ahead.into_iter().rev()) {
                        way.push(b'/');
                        way.extend_from_slice(name);
                    }
                    if must_be_directory {
                        way.push(b'/');
                    }
                    return Ok(PathTarget::Elsewhere(way));
                }
                None => return Err(libc::ENOENT),
            }
        }
        match behind.last() {
            None => Ok(PathTarget::Elsewhere(b"/".to_vec())),
            Some((_, Node::Passage(_))) => Ok(PathTarget::Elsewhere(joined(&behind))),
            Some((_, node)) if must_be_directory && node.entries().is_none() => Err(libc::ENOTDIR),
            Some((_, node)) => Ok(PathTarget::Ours(joined(&behind), node)),
        }
    }

    /// The entry at a path without links; `None` for what isn't ours.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<&Node> {
        match self.walk(path.as_bytes(), Last::Keep) {
            Ok(PathTarget::Ours(_, node)) => Some(node),
            _ => None,
        }
    }
}

fn joined(names: &[(&[u8], &Node)]) -> Vec<u8> {
    let mut path = Vec::new();
    for (name, _) in names {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    path
}

#[cfg(test)]
mod tests;
