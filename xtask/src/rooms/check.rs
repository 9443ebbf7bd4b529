//! What may be: arrows that lead downwards between crates, and in no circle between the rooms of one.
//!
//! In here: circles, exceptions, and the complaint about each. Out of here: reading files.

use super::house::{Crate, Storey};
use super::imports::{Arrows, Place, Rooms};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The scope of exceptions between crates; those between rooms have their crate's name.
pub const CRATES: &str = "crates";

/// A crate of the tree.
pub struct Found {
    /// Its package's name without `ferroce-`.
    pub name: String,
    /// Its manifest.
    pub manifest: Place,
    /// Other crates of the tree that it is built with, and the manifest's line.
    pub dependencies: Vec<(String, Place)>,
    /// Its inside.
    pub rooms: Rooms,
}

/// An arrow that may be for now.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Exception {
    /// [`CRATES`], or a crate.
    pub scope: String,
    /// Which names.
    pub from: String,
    /// Which is named.
    pub to: String,
    /// The line of the list.
    pub place: Place,
}

/// What is wrong.
#[derive(Debug, Default)]
pub struct Wrong {
    /// In words, each with what to do.
    pub complaints: Vec<String>,
    /// The lines of the list of exceptions that nothing needs.
    pub stale: BTreeSet<usize>,
}

/// Holds the tree against the house.
pub fn check(house: &[Storey], tree: &[Found], exceptions: &[Exception]) -> Wrong {
    let mut wrong = Wrong::default();
    let mut used = BTreeSet::new();
    between_crates(house, tree, exceptions, &mut used, &mut wrong);
    for found in tree {
        let Some(crate_) = storey_of(house, &found.name).map(|(_, crate_)| crate_) else { continue };
        within(crate_, found, exceptions, &mut used, &mut wrong);
    }
    for exception in exceptions.iter().filter(|exception| !used.contains(exception)) {
        let Exception { scope, from, to, place } = exception;
        wrong.stale.insert(place.line);
        wrong.complaints.push(format!(
            "{}: nothing needs the exception `{scope}: {from} -> {to}` any more\n  \
             delete the line, or run `cargo xtask rooms --shrink`",
            at(place)
        ));
    }
    wrong
}

fn storey_of<'a>(house: &'a [Storey], name: &str) -> Option<(usize, &'a Crate)> {
    house.iter().enumerate().find_map(|(height, storey)| {
        storey.iter().find(|crate_| crate_.name == name).map(|crate_| (height, crate_))
    })
}

fn between_crates<'a>(
    house: &[Storey],
    tree: &[Found],
    exceptions: &'a [Exception],
    used: &mut BTreeSet<&'a Exception>,
    wrong: &mut Wrong,
) {
    for found in tree {
        let Some((height, _)) = storey_of(house, &found.name) else {
            wrong.complaints.push(format!(
                "{}: the house has no crate `{}`\n  \
                 add it with a description to its storey in xtask/src/rooms/house.rs",
                at(&found.manifest),
                found.name
            ));
            continue;
        };
        for (to, place) in &found.dependencies {
            // One that isn't known is a complaint of its own.
            let Some((below, _)) = storey_of(house, to) else { continue };
            if below < height {
                continue;
            }
            if let Some(exception) = find(exceptions, CRATES, &found.name, to) {
                used.insert(exception);
                continue;
            }
            let direction = if below > height { "upwards" } else { "sideways" };
            wrong.complaints.push(format!("{}: `{}` -> `{to}` points {direction}", at(place), found.name));
        }
    }
}

fn within<'a>(
    crate_: &Crate,
    found: &Found,
    exceptions: &'a [Exception],
    used: &mut BTreeSet<&'a Exception>,
    wrong: &mut Wrong,
) {
    // Rooms that may know one another count as one, under the first one's name.
    let mut one = BTreeMap::new();
    for together in crate_.together {
        for room in together.rooms {
            if found.rooms.names.contains(*room) {
                one.insert(*room, together.rooms[0]);
            } else {
                wrong.complaints.push(format!(
                    "xtask/src/rooms/house.rs: `{}` has no room `{room}`\n  \
                     take it out of `together`, or name it as it's called now",
                    crate_.name
                ));
            }
        }
    }
    let of = |room: &str| one.get(room).map_or_else(|| room.to_owned(), |room| (*room).to_owned());
    let graph = |left_out: &dyn Fn(&str, &str) -> bool| {
        let mut graph = Graph::new();
        for ((from, to), _) in found.rooms.arrows.iter().filter(|((from, to), _)| !left_out(from, to)) {
            let (from, to) = (of(from), of(to));
            if from != to {
                graph.entry(from).or_default().insert(to);
            }
        }
        graph
    };
    let excepted = |from: &str, to: &str| find(exceptions, crate_.name, from, to).is_some();
    let without = graph(&excepted);
    for (from, to) in found.rooms.arrows.keys() {
        if let Some(exception) = find(exceptions, crate_.name, from, to) {
            // It's needed if this arrow alone would close a circle: there is a way back.
            if of(from) != of(to) && way(&without, &of(to), &of(from)).is_some() {
                used.insert(exception);
            }
        }
    }
    for circle in circles(&without) {
        let mut text = format!("`{}`: rooms know one another in a circle", crate_.name);
        for (from, to) in circle.iter().zip(circle.iter().cycle().skip(1)) {
            let written = written_between(&found.rooms.arrows, &of, &excepted, from, to);
            text.push_str(&format!("\n  {written}"));
        }
        wrong.complaints.push(text);
    }
}

/// An arrow between two rooms, or sets of rooms, as it stands in a file.
fn written_between(
    arrows: &Arrows,
    of: &dyn Fn(&str) -> String,
    excepted: &dyn Fn(&str, &str) -> bool,
    from: &str,
    to: &str,
) -> String {
    let mut between = arrows.iter().filter(|((a, b), _)| of(a) == from && of(b) == to && !excepted(a, b));
    between
        .next()
        .map_or_else(String::new, |((from, to), place)| format!("{}: `{from}` -> `{to}`", at(place)))
}

fn find<'a>(exceptions: &'a [Exception], scope: &str, from: &str, to: &str) -> Option<&'a Exception> {
    exceptions
        .iter()
        .find(|exception| exception.scope == scope && exception.from == from && exception.to == to)
}

fn at(place: &Place) -> String {
    format!("{}:{}", place.file.display(), place.line)
}

type Graph = BTreeMap<String, BTreeSet<String>>;

/// Circles, so many that each that there is shares a room with one of them: a shortest one through each first room.
fn circles(graph: &Graph) -> Vec<Vec<String>> {
    let mut seen = BTreeSet::new();
    let mut circles = Vec::new();
    for room in graph.keys() {
        if seen.contains(room) {
            continue;
        }
        let next = graph.get(room).into_iter().flatten();
        let shortest = next.filter_map(|next| way(graph, next, room)).min_by_key(Vec::len);
        if let Some(mut circle) = shortest {
            // It ends with `room`, where it begins too.
            circle.rotate_right(1);
            seen.extend(circle.iter().cloned());
            circles.push(circle);
        }
    }
    circles
}

/// A shortest way from a room to another, both included.
fn way(graph: &Graph, from: &str, to: &str) -> Option<Vec<String>> {
    let mut before: BTreeMap<&str, &str> = BTreeMap::new();
    let mut queue = VecDeque::from([from]);
    while let Some(room) = queue.pop_front() {
        if room == to {
            let mut way = vec![room.to_owned()];
            let mut room = room;
            while room != from {
                room = before[room];
                way.push(room.to_owned());
            }
            way.reverse();
            return Some(way);
        }
        for next in graph.get(room).into_iter().flatten() {
            if next != from && !before.contains_key(next.as_str()) {
                before.insert(next, room);
                queue.push_back(next);
            }
        }
    }
    None
}
