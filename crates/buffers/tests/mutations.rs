//! The tests of this crate notice when a rule of soundness is broken: each mutation of the source must fail the test of its rule.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// A change of the source that breaks a rule.
struct Mutation {
    rule: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
    /// The binary and the test that must fail.
    test: [&'static str; 2],
}

const MUTATIONS: [Mutation; 10] = [
    Mutation {
        rule: "S1: a buffer is lent for as long as its slot owns it",
        file: "buffer.rs",
        from: "region.mapping().lend(*start..*start + *capacity, loan)",
        to: "{ let loan = region.mapping().lend(*start..*start + *capacity, loan); self.settle(loan); loan }",
        test: ["it", "loans::the_adapter_touches_a_buffer_only_while_a_slot_owns_it"],
    },
    Mutation {
        rule: "S1: a buffer isn't lent for longer",
        file: "payload.rs",
        from: "self.part.buffer().settle(self.loan);",
        to: "",
        test: ["it", "loans::memory_of_a_request_returns_to_its_pool_after_the_loan"],
    },
    Mutation {
        rule: "S1: memory is registered until it is released",
        file: "region.rs",
        from: "    registration: Box<dyn Registration>,\n    mapping: Arc<Mapping>,",
        to: "    mapping: Arc<Mapping>,\n    registration: Box<dyn Registration>,",
        test: ["it", "memory::memory_is_deregistered_before_it_is_released"],
    },
    Mutation {
        rule: "S5: an entry is retired after the poster has written it",
        file: "slots.rs",
        from: "ring.head.store(*head, Ordering::Release);",
        to: "ring.head.store(*head, Ordering::Relaxed);",
        test: ["slots", "entries_retire_once_and_in_order_while_the_poster_posts"],
    },
    Mutation {
        rule: "S5: the poster writes a place after the retirer has left it",
        file: "slots.rs",
        from: "            self.tail = self.ring.tail.load(Ordering::Acquire);",
        to: "            self.tail = self.ring.tail.load(Ordering::Relaxed);",
        test: ["slots", "entries_retire_once_and_in_order_while_the_poster_posts"],
    },
    Mutation {
        rule: "S5: an entry retires once",
        file: "slots.rs",
        from: "self.ring.depth - self.head.wrapping_sub(tail)",
        to: "self.ring.depth + 1 - self.head.wrapping_sub(tail)",
        test: ["it", "slots::unsignalled_entries_retire_with_a_later_one_in_order"],
    },
    Mutation {
        rule: "S5: one thread at a time retires",
        file: "slots.rs",
        from: "compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err()",
        to: "compare_exchange(false, true, Ordering::Relaxed, Ordering::Relaxed).is_err()",
        test: ["slots", "an_entry_is_taken_by_one_of_two_threads"],
    },
    Mutation {
        rule: "S4: the number of an entry of a shelf isn't that of the next one in its place",
        file: "shelf.rs",
        from: "place.uses = place.uses.wrapping_add(1);",
        to: "",
        test: ["it", "slots::entries_of_a_shelf_are_taken_once_by_their_own_numbers"],
    },
    Mutation {
        rule: "S6: borrowed memory is deregistered before its borrow ends",
        file: "borrowed.rs",
        from: "region| Arc::strong_count(region) == 1",
        to: "_| false",
        test: ["it", "memory::borrowed_memory_is_deregistered_when_its_borrow_ends"],
    },
    Mutation {
        rule: "S7: all bytes of a buffer are initialised",
        file: "register.rs",
        from: "alloc_zeroed(layout) })",
        to: "std::alloc::alloc(layout) })",
        test: ["it", "memory::all_bytes_up_to_the_capacity_are_initialised"],
    },
];

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    let copied = Command::new("cp").arg("-r").arg(from.join(".")).arg(to).status().unwrap();
    assert!(copied.success(), "{} can't be copied", from.display());
}

/// A copy of the crate that is a workspace of its own.
fn copy_of_the_crate() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let copied = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mutated-buffers");
    let _ = fs::remove_dir_all(copied.join("src"));
    for folder in ["src", "tests/it", "tests/slots"] {
        copy(&here.join(folder), &copied.join(folder));
    }
    let types = fs::canonicalize(here.join("../types")).unwrap();
    let manifest = format!(
        "[package]\nname = \"ferroce-buffers\"\nedition = \"2024\"\n\
         [dependencies]\nferroce-types = {{ path = {types:?} }}\nsmallvec = \"1\"\n\
         [dev-dependencies]\nloom = \"0.7\"\n[workspace]\n"
    );
    fs::write(copied.join("Cargo.toml"), manifest).unwrap();
    fs::copy(here.join("../../Cargo.lock"), copied.join("Cargo.lock")).unwrap();
    copied
}

/// Runs a test of the copy, and returns whether it passes, with the output.
fn passes(copied: &Path, [binary, test]: [&str; 2]) -> (bool, String) {
    let output = Command::new(env!("CARGO"))
        .args(["test", "--quiet", "--offline", "--test", binary, "--", "--exact", test])
        .current_dir(copied)
        .env("CARGO_TARGET_DIR", copied.join("target"))
        .env("RUSTFLAGS", "-Awarnings")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text.into_owned())
}

#[test]
fn each_mutation_fails_the_test_of_its_rule() {
    let copied = copy_of_the_crate();
    let mut complaints = Vec::new();
    for binary in ["it", "slots"] {
        let (passed, output) = passes(&copied, [binary, "none"]);
        assert!(passed, "the copy doesn't build:\n{output}");
    }
    for Mutation { rule, file, from, to, test } in MUTATIONS {
        let path = copied.join("src").join(file);
        let source = fs::read_to_string(&path).unwrap();
        assert_eq!(source.matches(from).count(), 1, "{rule}: the source has changed");
        fs::write(&path, source.replace(from, to)).unwrap();
        let (passed, output) = passes(&copied, test);
        fs::write(&path, source).unwrap();
        let noticed = output.contains("1 failed") || output.contains("SIGABRT");
        if passed || output.contains("could not compile") || !noticed {
            complaints.push(format!("{rule}: {test:?} {output}"));
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}
