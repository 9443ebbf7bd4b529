//! `ferroce sysfs`: the entries that `ferroce run` shows, as files.

use ferroce_doctor::path_error;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use ferroce_netdev::discover;
use ferroce_preload::counted;
use ferroce_preload::tree::{Last, Node, PathTarget, Tree, TreeSource};

/// What is written: the path in the tree, which is also the one below the directory.
const ROOTS: [&str; 3] = ["/sys/class/infiniband", "/sys/class/infiniband_verbs", "/dev/infiniband"];

/// Writes the tree to a directory that doesn't exist or is empty.
pub fn sysfs(directory: &Path) -> ExitCode {
    match write(directory) {
        Ok(report) => {
            print!("{report}");
            ExitCode::SUCCESS
        }
        Err(says) => {
            eprintln!("ferroce sysfs: {says}");
            ExitCode::FAILURE
        }
    }
}

fn write(directory: &Path) -> Result<String, String> {
    let devices = discover().map_err(|error| error.to_string())?;
    let names: Vec<String> = devices.iter().map(|device| device.name.clone()).collect();
    let tree = Tree::from(&TreeSource::with(devices));
    let explain = |error: io::Error| format!("{}: {}", directory.display(), path_error(directory, &error));
    if fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(format!("{} is not empty; name a new directory", directory.display()));
    }
    fs::create_dir_all(directory).map_err(explain)?;
    let mut export =
        Export { tree: &tree, directory, written: BTreeMap::new(), nodes: 0, links: 0, left_out: Vec::new() };
    export.all().map_err(explain)?;
    Ok(export.report(&names))
}

/// The tree's links lead through `/sys/devices`, where nothing can be mounted. Here a link is replaced by what it leads
/// to, the first time; later ones become links to that.
struct Export<'a> {
    tree: &'a Tree,
    directory: &'a Path,
    /// Where an entry of the tree is now.
    written: BTreeMap<Vec<u8>, PathBuf>,
    /// Device nodes made.
    nodes: usize,
    /// Links to `/dev/null` made in place of device nodes.
    links: usize,
    /// Device nodes that no stand-in serves for.
    left_out: Vec<String>,
}

impl Export<'_> {
    fn all(&mut self) -> io::Result<()> {
        let roots = ROOTS.map(|root| (root, self.directory.join(&root[1..])));
        for (root, to) in &roots {
            self.written.insert(root.as_bytes().to_vec(), to.clone());
        }
        for (root, to) in roots {
            let tree = self.tree;
            if let Some(node) = tree.get(root) {
                self.contents(root.as_bytes(), node, &to)?;
            }
        }
        Ok(())
    }

    fn contents(&mut self, path: &[u8], node: &Node, to: &Path) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(to)?;
        for (name, child) in node.entries().unwrap_or_default() {
            self.entry(&[path, b"/", name.as_bytes()].concat(), child, &to.join(name))?;
        }
        Ok(())
    }

    fn entry(&mut self, path: &[u8], node: &Node, to: &Path) -> io::Result<()> {
        if let Some(there) = self.written.get(path) {
            return symlink(relative(there, to), to);
        }
        match node {
            Node::Directory(_) | Node::Passage(_) => {
                self.written.insert(path.to_vec(), to.to_owned());
                self.contents(path, node, to)
            }
            Node::File(text) => attribute(text, to),
            Node::Counter { device, set, name } => match counted::text(device, *set, name) {
                Some(text) => attribute(&text, to),
                None => Ok(()),
            },
            // Reading it is an error in either case.
            Node::NoValue => Ok(()),
            Node::Link(_) => match self.tree.walk(path, Last::Follow) {
                Ok(PathTarget::Ours(path, node)) => self.entry(&path, node, to),
                _ => Ok(()),
            },
            Node::Device { opens: true, .. } => self.device_node(to),
            Node::Device { opens: false, .. } => {
                self.left_out.push(String::from_utf8_lossy(path).into_owned());
                Ok(())
            }
        }
    }

    /// A device like `/dev/null`, or a link to it where the system makes no devices for this user.
    fn device_node(&mut self, to: &Path) -> io::Result<()> {
        let path = CString::new(to.as_os_str().as_bytes())?;
        let null = libc::makedev(1, 3);
        // SAFETY: a NUL-terminated path.
        if unsafe { libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o666, null) } == 0 {
            self.nodes += 1;
            // The mode that was asked for is subject to the umask.
            return fs::set_permissions(to, std::os::unix::fs::PermissionsExt::from_mode(0o666));
        }
        self.links += 1;
        symlink("/dev/null", to)
    }

    fn report(&self, devices: &[String]) -> String {
        let there = self.directory.display();
        let which = if devices.is_empty() { "no device".to_owned() } else { devices.join(", ") };
        let mut text = format!("{there}/sys/class/infiniband, {there}/sys/class/infiniband_verbs: {which}\n");
        let (nodes, links) = (self.nodes, self.links);
        if nodes > 0 {
            text.push_str(&format!(
                "{there}/dev/infiniband: {nodes} device nodes that behave as /dev/null\n"
            ));
        }
        if links > 0 {
            text.push_str(&format!(
                "{there}/dev/infiniband: {links} links to /dev/null (this user may make no device nodes)\n"
            ));
        }
        for path in &self.left_out {
            text.push_str(&format!("{path} is left out: nothing but the kernel can answer there\n"));
        }
        text.push_str("These are the values of now; they don't follow a change of addresses.\n");
        text
    }
}

fn attribute(text: &str, to: &Path) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o444).open(to)?;
    io::Write::write_all(&mut file, text.as_bytes())
}

/// The way from the link `from` to `to`; both lie below one directory.
fn relative(to: &Path, from: &Path) -> PathBuf {
    let here = from.parent().unwrap_or(from);
    let (to, here): (Vec<Component<'_>>, Vec<_>) = (to.components().collect(), here.components().collect());
    let common = to.iter().zip(&here).take_while(|(a, b)| a == b).count();
    let up = std::iter::repeat_n(Component::ParentDir, here.len() - common);
    up.chain(to[common..].iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_relative_to_where_they_are() {
        let way = |to: &str, from: &str| relative(Path::new(to), Path::new(from)).display().to_string();
        assert_eq!(way("/x/class/infiniband/a", "/x/class/verbs/u/device"), "../../infiniband/a");
        assert_eq!(way("/x/a", "/x/b"), "a");
        assert_eq!(way("/x/a", "/x/a/b/c"), "..");
    }
}
