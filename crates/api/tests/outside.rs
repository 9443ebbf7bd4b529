//! What a user's crate outside of this workspace builds, runs, and can't build.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

/// Packages that a user's crate is built of, itself included: with the simulation alone, and with the default features.
const MOST_PACKAGES: [(&str, usize); 2] =
    [("default-features = false, features = [\"sim\"]", 21), ("default-features = true", 56)];

/// A crate that is a workspace of its own and depends on `ferroce` by its path.
struct Outside {
    directory: PathBuf,
    target: PathBuf,
}

impl Outside {
    fn new(name: &str) -> Self {
        Self::with(name, MOST_PACKAGES[0].0)
    }

    /// With these features of `ferroce`.
    fn with(name: &str, features: &str) -> Self {
        let directory = env::temp_dir().join(format!("ferroce-{name}-{}", std::process::id()));
        let outside = Self { directory, target: Path::new(env!("CARGO_TARGET_TMPDIR")).join("outside") };
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        outside.write(
            "Cargo.toml",
            &format!(
                "[package]\nname = \"outside-{name}\"\nedition = \"2024\"\n[lib]\nname = \"outside\"\n[workspace]\n[dependencies]\nferroce = {{ path = {here:?}, {features} }}\n"
            ),
        );
        fs::copy(here.join("../../Cargo.lock"), outside.directory.join("Cargo.lock")).unwrap();
        outside
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.directory.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Runs cargo where no C compiler, no pkg-config and no bindgen can be had. (`cc` links.)
    fn cargo(&self, words: &[&str]) -> Output {
        self.cargo_with_seed(words, None)
    }

    fn cargo_with_seed(&self, words: &[&str], seed: Option<&str>) -> Output {
        Command::new(env!("CARGO"))
            .args(&words[..1])
            .arg("--offline")
            .args(&words[1..])
            .current_dir(&self.directory)
            .env("CARGO_TARGET_DIR", &self.target)
            // Captures of failing seeds are deleted with the crate.
            .env("TMPDIR", &self.directory)
            .envs(["CC", "CXX", "CMAKE", "PKG_CONFIG"].map(|tool| (tool, "/nonexistent")))
            .env_remove("RUSTFLAGS")
            .env_remove("FERROCE_SEED")
            .envs(seed.map(|seed| ("FERROCE_SEED", seed)))
            .output()
            .unwrap()
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn text(output: &Output) -> String {
    (String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr)).into_owned()
}

#[test]
fn a_users_crate_tests_two_hosts_with_cargo_test_alone() {
    let outside = Outside::new("user");
    outside.write("src/lib.rs", include_str!("outside/echo.rs"));
    outside.write("tests/two_hosts.rs", include_str!("outside/two_hosts.rs"));
    let output = outside.cargo(&["test"]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("test an_echo_survives_loss ... ok"), "{text}");
    // The test with a mistake is there to fail: by its seed, and with a report.
    let output = outside.cargo(&["test", "--", "--ignored"]);
    let text = self::text(&output);
    assert!(!output.status.success(), "{text}");
    for part in
        ["the test fails with seed", "FERROCE_SEED=", "hangs at", "which waits for a receive of the peer"]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
    let text = self::text(&outside.cargo_with_seed(&["test", "--", "--ignored"], Some("41")));
    assert!(text.contains("the test fails with seed 41;"), "{text}");
}

/// Mistakes that the tests of a user's crate find, and a part of the report of each: the fault that suffices, or what is waited for.
const FOUND: [(&str, &str); 9] = [
    ("polling_the_last_byte", "of server places 1024 bytes in any order"),
    ("memory_used_again_after_a_timeout", "of server is"),
    ("a_forgotten_receive", "which waits for a receive of the peer"),
    ("order_between_queue_pairs", "of client pauses for"),
    ("memory_changed_while_it_is_read", "of server reads changed memory again"),
    ("a_read_taken_for_a_snapshot", "of server pauses for"),
    ("no_retry_for_a_receiver", "of server isn't ready, though a receive is posted"),
    ("memory_without_end", "register of server fails for lack of memory"),
    ("a_completion_queue_of_any_size", "a completion queue of this adapter has at most 64"),
];

#[test]
fn the_licences_of_an_adapter_find_mistakes() {
    let outside = Outside::new("planted");
    outside.write("src/lib.rs", include_str!("outside/planted.rs"));
    outside.write("tests/finds.rs", include_str!("outside/finds.rs"));
    // Without its licence each mistake stays hidden, and without the mistake all licences are harmless.
    let output = outside.cargo(&["test", "--test", "finds"]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    for (name, _) in FOUND {
        for hidden in ["is_hidden_by_a_friendly_adapter", "is_absent_from_the_right_program"] {
            assert!(text.contains(&format!("test {name}::{hidden} ... ok")), "{name} in {text}");
        }
    }
    let output = outside.cargo(&["test", "--test", "finds", "--", "--ignored"]);
    let all = self::text(&output);
    assert!(!output.status.success(), "{all}");
    for (name, part) in FOUND {
        let report = all.split(&format!("---- {name}::is_found stdout ----")).nth(1).expect("a report");
        let report = report.split("\n---- ").next().unwrap_or(report);
        for part in [part, "the test fails with seed", "host server, 10.0.0.1", "packets in transit: "] {
            assert!(report.contains(part), "{part} of {name} in {all}");
        }
        // The same faults again, by what the report prints.
        let again =
            report.split(" injects these alone").next().and_then(|text| text.rsplit("FERROCE_SEED=").next());
        let again = again.filter(|_| report.contains("injects these alone"));
        if let Some(run) = again {
            let words = ["test", "--test", "finds", "--", "--ignored", name];
            let text = self::text(&outside.cargo_with_seed(&words, Some(run)));
            assert!(text.contains(part) && text.contains(run), "{run} of {name}: {text}");
        }
        let capture = report.split("for Wireshark and tshark: ").nth(1).and_then(|rest| rest.lines().next());
        let capture = Path::new(capture.expect("a capture"));
        if name == "polling_the_last_byte" && Command::new("tshark").arg("-v").output().is_ok() {
            let packets = ferroce_tests::tshark(capture, &["-Y", "infiniband.bth.opcode == 9"]);
            assert_eq!(packets.lines().count(), 1, "the WRITE's last packet in {packets}");
        }
        fs::remove_file(capture).unwrap();
    }
}

/// The chapter of the book: its tests pass, and the last one prints the report that the chapter shows.
#[test]
fn the_books_chapter_ends_with_a_mistake_that_a_seed_finds() {
    let book = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../book");
    let outside = Outside::new("mailbox");
    let manifest = fs::read_to_string(outside.directory.join("Cargo.toml")).unwrap();
    outside.write("Cargo.toml", &manifest.replace("name = \"outside\"", "name = \"mailbox\""));
    for (file, program) in [("src/lib.rs", "mailbox.rs"), ("tests/mailbox.rs", "mailbox_test.rs")] {
        outside.write(file, &fs::read_to_string(book.join("programs").join(program)).unwrap());
    }
    let output = outside.cargo(&["test"]);
    assert!(output.status.success() && text(&output).contains("4 passed"), "{}", text(&output));
    let output = outside.cargo(&["test", "--", "--ignored"]);
    let text = text(&output);
    assert!(!output.status.success(), "{text}");
    for line in fs::read_to_string(book.join("shown/mailbox.txt")).unwrap().lines() {
        assert!(text.lines().any(|printed| printed == line), "{line} in {text}");
    }
    let capture = text.split("for Wireshark and tshark: ").nth(1).and_then(|rest| rest.lines().next());
    fs::remove_file(capture.expect("a capture")).unwrap();
    let seed = |seed| outside.cargo_with_seed(&["test", "--", "--ignored"], Some(seed));
    assert!(self::text(&seed("1:3")).contains("a part of the letter is missing"));
    // Without that licence, or with another seed, it passes.
    assert!(seed("1:").status.success() && seed("0").status.success());
}

#[test]
fn no_package_builds_c_code() {
    for (features, most) in MOST_PACKAGES {
        let outside = Outside::with("tree", features);
        outside.write("src/lib.rs", "");
        let output = outside.cargo(&["tree", "--prefix", "none", "--edges", "normal,build"]);
        assert!(output.status.success(), "{}", text(&output));
        // On standard error, cargo may report that it waits for another one.
        let text = String::from_utf8_lossy(&output.stdout);
        let packages: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert!(packages.contains(&"ferroce"), "{text}");
        for builder in ["cc", "cmake", "bindgen", "pkg-config", "autotools"] {
            assert!(!packages.contains(&builder), "{builder} in {text}");
        }
        let count = packages.iter().collect::<std::collections::BTreeSet<_>>().len();
        assert!(count <= most, "{count} packages with {features}: {text}");
    }
}

/// Each file of `compile_fail` compiles without its line marked `// WRONG`, and fails with it by the error of its first line.
#[test]
fn misuse_does_not_compile() {
    let outside = Outside::new("misuse");
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile_fail");
    let mut expected = BTreeMap::new();
    let mut modules = String::from("#![deny(unused_must_use)]\n");
    for entry in fs::read_dir(cases).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let source = fs::read_to_string(&path).unwrap();
        let (error, _) =
            source.strip_prefix("//! ").and_then(|text| text.split_once(": ")).expect("an error code");
        let right: String =
            source.lines().filter(|line| !line.ends_with("// WRONG")).flat_map(|l| [l, "\n"]).collect();
        assert_eq!(source.lines().count(), right.lines().count() + 1, "{name}: one line is wrong");
        modules += &format!("pub mod {name};\n");
        outside.write(&format!("src/{name}.rs"), &right);
        outside.write(
            &format!("examples/{name}.rs"),
            &format!("#![deny(unused_must_use)]\n{source}fn main() {{}}\n"),
        );
        expected.insert(name, error.to_owned());
    }
    assert!(expected.len() >= 48);
    outside.write("src/lib.rs", &modules);
    let output = outside.cargo(&["check", "--lib"]);
    assert!(output.status.success(), "{}", text(&output));
    let output = outside.cargo(&["check", "--examples", "--keep-going", "--message-format", "json"]);
    let found = errors(&String::from_utf8_lossy(&output.stdout));
    let wrong: Vec<String> = expected
        .iter()
        .filter(|(name, error)| found.get(*name) != Some(&vec![(*error).clone()]))
        .map(|(name, error)| format!("{name}: {:?} instead of {error}", found.get(name)))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The codes of errors in cargo's messages, by target.
fn errors(messages: &str) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for message in messages.lines().filter(|line| line.contains(r#""level":"error""#)) {
        let after =
            |key: &str| message.split_once(key).and_then(|(_, rest)| rest.split_once('"')).map(|(it, _)| it);
        let name = after(r#""kind":["example"],"crate_types":["bin"],"name":""#);
        let code = after(r#""code":{"code":""#);
        if let (Some(name), Some(code)) = (name, code) {
            found.entry(name.to_owned()).or_default().push(code.to_owned());
        }
    }
    found
}
