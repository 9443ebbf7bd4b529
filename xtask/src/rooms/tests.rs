//! Made-up trees, in each of which one thing is wrong.

use super::house::{Crate, Storey, Together};
use super::{check::Wrong, complaints, tree};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

const HOUSE: &[Storey] = &[
    &[
        Crate { name: "low", what: "below", together: &[] },
        Crate { name: "beside", what: "below", together: &[] },
    ],
    &[Crate {
        name: "high",
        what: "above",
        together: &[Together { rooms: &["left", "right"], why: "they are one" }],
    }],
    &[Crate { name: "roof", what: "not built yet", together: &[] }],
];

/// A workspace in a directory of its own, removed when it is dropped.
struct Workspace(PathBuf);

impl Workspace {
    /// `files` are of `crates/`; there are `low`, `beside` and `high`, which has the rooms that [`HOUSE`] names.
    fn new(files: &[(&str, &str)]) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("ferroce-rooms-{}-{number}", std::process::id()));
        let workspace = Self(root);
        workspace.write("Cargo.toml", "[workspace]\nresolver = \"3\"\nmembers = [\"crates/*\"]\n");
        for name in ["low", "beside", "high"] {
            workspace.write(&format!("crates/{name}/Cargo.toml"), &manifest(name, ""));
            workspace.write(&format!("crates/{name}/src/lib.rs"), "");
        }
        workspace.write("crates/high/src/lib.rs", "mod left {} mod right {}");
        for (path, content) in files {
            workspace.write(&format!("crates/{path}"), content);
        }
        workspace
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("within the root")).expect("the directory can be made");
        fs::write(path, content).expect("the directory is ours");
    }

    fn check(&self, exceptions: &str) -> Wrong {
        complaints(HOUSE, &tree(&self.0).expect("a workspace"), exceptions).expect("a list")
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn manifest(name: &str, more: &str) -> String {
    format!("[package]\nname = \"ferroce-{name}\"\nedition = \"2024\"\n{more}")
}

/// What is wrong with a tree of which only `low` has something in it.
fn wrong_with_low(files: &[(&str, &str)], exceptions: &str) -> Vec<String> {
    let files: Vec<(String, &str)> =
        files.iter().map(|(path, content)| (format!("low/src/{path}"), *content)).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(path, content)| (path.as_str(), *content)).collect();
    Workspace::new(&files).check(exceptions).complaints
}

#[track_caller]
fn assert_circle(files: &[(&str, &str)], arrows: &[&str]) {
    let wrong = wrong_with_low(files, "");
    assert_eq!(wrong.len(), 1, "{wrong:#?}");
    assert!(wrong[0].starts_with("`low`: rooms know one another in a circle"), "{}", wrong[0]);
    arrows.iter().for_each(|arrow| assert!(wrong[0].contains(arrow), "{arrow} isn't in: {}", wrong[0]));
}

#[test]
fn tree_with_arrows_that_point_downwards_passes() {
    let low = "[dependencies]\nferroce-low = { path = \"../low\" }\n";
    let workspace = Workspace::new(&[
        ("high/Cargo.toml", &manifest("high", low)),
        ("low/src/lib.rs", "mod a; mod b; mod c;"),
        ("low/src/a.rs", "use crate::{b::B, c};"),
        ("low/src/b/mod.rs", "mod inner; use super::c::C; pub struct B;"),
        ("low/src/b/inner.rs", "use super::B; use super::super::c::C;"),
        ("low/src/c.rs", "pub struct C;"),
    ]);
    assert_eq!(workspace.check("").complaints, [""; 0]);
}

#[test]
fn arrow_to_a_higher_crate_or_one_beside_fails() {
    for (to, direction) in [("high", "upwards"), ("beside", "sideways")] {
        let more = format!("[dependencies]\nferroce-{to} = {{ path = \"../{to}\" }}\n");
        let workspace = Workspace::new(&[("low/Cargo.toml", &manifest("low", &more))]);
        let wrong = workspace.check("").complaints;
        assert_eq!(wrong.len(), 1, "{wrong:#?}");
        let expected = format!("crates/low/Cargo.toml:5: `low` -> `{to}` points {direction}");
        assert_eq!(wrong[0], expected);
        let exception = format!("crates: low -> {to}  until it is turned\n");
        assert_eq!(workspace.check(&exception).complaints, [""; 0]);
    }
}

#[test]
fn dependency_of_tests_does_not_count() {
    let more = "[dev-dependencies]\nferroce-high = { path = \"../high\" }\n";
    let workspace = Workspace::new(&[("low/Cargo.toml", &manifest("low", more))]);
    assert_eq!(workspace.check("").complaints, [""; 0]);
}

#[test]
fn crate_that_the_house_lacks_fails() {
    let workspace = Workspace::new(&[("shed/Cargo.toml", &manifest("shed", "")), ("shed/src/lib.rs", "")]);
    let wrong = workspace.check("").complaints;
    assert_eq!(wrong.len(), 1, "{wrong:#?}");
    assert!(wrong[0].starts_with("crates/shed/Cargo.toml:1: the house has no crate `shed`"), "{}", wrong[0]);
}

#[test]
fn circle_is_named_with_file_and_line() {
    assert_circle(
        &[
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "\nuse crate::b::B;"),
            ("b/mod.rs", "mod inner;"),
            ("b/inner.rs", "\n\nfn f() { super::super::c::f() }"),
            ("c.rs", "use crate::{a::{self, A}};"),
        ],
        &[
            "crates/low/src/a.rs:2: `a` -> `b`",
            "crates/low/src/b/inner.rs:3: `b` -> `c`",
            "crates/low/src/c.rs:1: `c` -> `a`",
        ],
    );
}

#[test]
fn arrow_is_seen_in_types_macros_and_through_the_root() {
    let back = ("b.rs", "use crate::a::A;");
    for from in [
        "fn f(b: &crate::b::B) {}",
        "fn f() { println!(\"{}\", crate::b::f()); }",
        "macro_rules! m { () => { $crate::b::f() } }",
        "thread_local! { static B: super::b::B = super::b::B; }",
        "fn f() { use crate::{b as other}; }",
        "use crate::Shown;",
        "use super::r#b::B;",
        "#[cfg(not(test))] use crate::b::B;",
        "#[cfg(any(test, feature = \"fuzz\"))] use crate::b::B;",
    ] {
        let files = [("lib.rs", "mod a; mod b; pub use b::B as Shown;"), ("a.rs", from), back];
        assert_circle(&files, &["crates/low/src/a.rs:1: `a` -> `b`"]);
    }
}

#[test]
fn test_code_and_other_crates_under_a_rooms_name_do_not_count() {
    for from in [
        "#[cfg(test)] mod tests { use crate::b::B; }",
        "#[cfg(all(test, unix))] use crate::b::B;",
        "#[test] fn t() { crate::b::f() }",
        "struct S; impl S { #[cfg(test)] fn f() { crate::b::f() } }",
        "pub(in crate::a) struct S; fn f() { b::f() }",
        "use crate::other::b;",
    ] {
        let files =
            [("lib.rs", "mod a; mod b; use elsewhere::other;"), ("a.rs", from), ("b.rs", "use crate::a;")];
        assert_eq!(wrong_with_low(&files, ""), [""; 0], "{from}");
    }
}

#[test]
fn rooms_that_are_one_may_know_one_another_but_no_third() {
    let together = ("high/src/left.rs", "use crate::right::R;");
    let root = ("high/src/lib.rs", "mod left; mod right; mod third;");
    let workspace = |left, right, third| {
        Workspace::new(&[root, together, ("high/src/right.rs", right), ("high/src/third.rs", third)])
            .check(left)
    };
    assert_eq!(workspace("", "use crate::left::L;", "use crate::left::L;").complaints, [""; 0]);
    let wrong = workspace("", "use crate::third::T;", "use crate::left::L;").complaints;
    assert_eq!(wrong.len(), 1, "{wrong:#?}");
    assert!(wrong[0].contains("right.rs:1: `right` -> `third`"), "{}", wrong[0]);
    assert!(wrong[0].contains("third.rs:1: `third` -> `left`"), "{}", wrong[0]);
}

#[test]
fn room_that_the_house_names_and_the_crate_lacks_fails() {
    let wrong = Workspace::new(&[("high/src/lib.rs", "mod left {}")]).check("").complaints;
    assert_eq!(wrong.len(), 1, "{wrong:#?}");
    assert!(wrong[0].contains("`high` has no room `right`"), "{}", wrong[0]);
}

#[test]
fn exception_lets_one_arrow_pass_until_it_is_stale() {
    let circle = [("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b;"), ("b.rs", "use crate::a;")];
    let one = "# Why it is there.\nlow: a -> b  it is old\n";
    assert_eq!(wrong_with_low(&circle, one), [""; 0]);
    // Without the way back it isn't a circle, and without the arrow the exception is stale.
    for index in [1, 2] {
        let mut turned = circle;
        turned[index].1 = "";
        let wrong = wrong_with_low(&turned, one);
        assert_eq!(wrong.len(), 1, "{wrong:#?}");
        assert!(
            wrong[0].starts_with("xtask/rooms.allow:2: nothing needs the exception `low: a -> b`"),
            "{}",
            wrong[0]
        );
    }
    let workspace = Workspace::new(&[]);
    assert_eq!(workspace.check("nowhere: a -> b  it is old").stale.into_iter().collect::<Vec<_>>(), [1]);
}

#[test]
fn exception_without_a_reason_is_an_error() {
    let tree = tree(&Workspace::new(&[]).0).expect("a workspace");
    assert!(complaints(HOUSE, &tree, "low: a -> b\n").is_err());
}
