use super::rules::{Finding, Types, fences, sentences};
use super::text::paragraphs;
use super::{counts, exceptions, is_for_users, written};
use std::path::Path;

fn found(name: &str, source: &str) -> Vec<(u32, usize)> {
    let mut findings = Vec::new();
    for paragraph in paragraphs(Path::new(name), source) {
        sentences(Path::new(name), &paragraph, &mut findings);
    }
    findings.iter().map(|finding| (finding.rule, finding.line)).collect()
}

#[test]
fn unnamed_persons_are_found_in_pages_comments_and_strings() {
    assert_eq!(found("a.md", "One line.\n\nA ring that nobody reads.\n"), [(1, 3)]);
    assert_eq!(found("a.md", "The peer. Who asks there\nhears nothing.\n"), [(1, 1), (2, 2)]);
    assert_eq!(found("a.rs", "fn nobody() {}\n/// Whoever waits\n/// is woken.\nstruct A;"), [(1, 2)]);
    assert_eq!(found("a.rs", "f(\"a\",\n \"held by somebody\");"), [(1, 2)]);
    assert_eq!(found("a.rs", "let a = r#\"\nNobody\"#;"), [(1, 2)]);
    assert_eq!(found("a.c", "/* one\n * for who waits */ int x;"), [(1, 2)]);
    assert_eq!(found("a.sh", "#!/bin/sh\n# Nobody\necho nobody\n"), [(1, 2)]);
    assert_eq!(
        found("a.py", "def f():\n    \"\"\"Waits.\n\n    For\n    nobody.\"\"\"\n    x = 'nobody'  \n"),
        [(1, 5)]
    );
    assert_eq!(found("run", "#!/bin/sh\n# Nobody\necho nobody\n"), [(1, 2)]);
    for clause in [
        "is left out; who names it is refused.",
        "waits for its turn, and for who knows the way.",
        "closed (who asks waits).",
    ] {
        assert_eq!(found("a.md", clause), [(1, 1)], "{clause}");
    }
}

#[test]
fn questions_code_and_idioms_are_no_findings() {
    assert_eq!(found("a.md", "## Who is it for?\n\n`nobody` is a user.\n\n```\nnobody\n```\n"), []);
    assert_eq!(found("a.md", "There is no key. It is no longer there. It is no more than 4.\n"), []);
    assert_eq!(found("a.md", "The user who starts it owns it. Users, who have accounts, may log in.\n"), []);
    assert_eq!(found("a.rs", "f(\"{says}: {told:?}\");"), []);
    assert_eq!(found("a.rs", "let c = '\"'; let nobody = 'a'; // A comment.\nfn f<'a>(x: &'a str) {}\n"), []);
}

#[test]
fn other_rules_are_found() {
    assert_eq!(found("a.md", "This is no key.\n"), [(4, 1)]);
    assert_eq!(found("a.rs", "f(\"{name} is no variable of ours\");"), [(4, 1)]);
    assert_eq!(found("a.md", "The mend\nis simple. Ports are no\nnames.\n"), [(3, 1), (4, 2)]);
}

#[test]
fn a_fence_names_its_partner() {
    let mut findings = Vec::new();
    fences(Path::new("a.rs"), "// SYNC: pairs with `b`.\nfence(SeqCst);\n", &mut findings);
    assert!(findings.is_empty());
    fences(Path::new("a.rs"), "// Orders.\nfence(SeqCst);\n", &mut findings);
    assert_eq!(findings.iter().map(|finding| (finding.rule, finding.line)).collect::<Vec<_>>(), [(9, 2)]);
}

#[test]
fn a_name_of_two_types_is_found_once() {
    let mut types = Types::default();
    types.read(Path::new("a.rs"), "struct A; enum B {} #[cfg(test)] mod tests { struct B; }").unwrap();
    types.read(Path::new("b.rs"), "mod inner { pub struct A; } fn f() { struct B; }").unwrap();
    let mut findings = Vec::new();
    types.repeated(&mut findings);
    assert_eq!(counts(&findings), [((10, "A".to_owned()), 1)].into());
}

#[test]
fn exceptions_are_counts_and_spare_no_file_that_users_read() {
    let finding = |file: &str| Finding { rule: 1, file: file.into(), line: 1, words: "nobody".into() };
    let found =
        counts(&[finding("crates/nic/src/lib.rs"), finding("crates/nic/src/lib.rs"), finding("README.md")]);
    let list = written(&found);
    assert_eq!(exceptions(&list).unwrap(), [((1, "crates/nic/src/lib.rs".to_owned()), 2)].into());
    for line in [
        "1 README.md 1",
        "1 docs/VERSIONS.md 1",
        "1 book/src/README.md 2",
        "1 crates/nic/src/lib.rs",
        "x a 1",
    ] {
        assert!(exceptions(line).is_err(), "{line}");
    }
    assert!(!is_for_users("docs/design/host.md"));
}
