//! What a C compiler makes of headers, for tests that hold structures and numbers to them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// A structure of ours.
pub struct Layout {
    /// Its name, that of the header.
    pub name: &'static str,
    /// Its size.
    pub size: usize,
    /// Its fields with their offsets.
    pub fields: Vec<(&'static str, usize)>,
}

/// Layouts of structures with their fields.
macro_rules! layouts {
    ($($name:ident { $($($field:ident).+),* })*) => {
        vec![$($crate::headers::Layout {
            name: stringify!($name),
            size: size_of::<$name>(),
            fields: vec![$((stringify!($($field).+), offset_of!($name, $($field).+))),*],
        }),*]
    };
}

pub(crate) use layouts;

/// A field as a word.
pub fn field_key(field: &str) -> String {
    field.replace(' ', "").replace("r#", "")
}

/// Compiles and runs a C program against the installed headers; lines are `key value`.
fn run_c(name: &str, headers: &[&str], body: &str) -> BTreeMap<String, i64> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = directory.join(format!("{name}-{}.c", std::process::id()));
    let program = source.with_extension("");
    let includes: String = headers
        .iter()
        .chain(&["stdio.h", "stddef.h"])
        .map(|header| format!("#include <{header}>\n"))
        .collect();
    let text = format!("{includes}int main(void) {{\n{body}return 0; }}\n");
    std::fs::write(&source, text).expect("writing the C program");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let output = Command::new(compiler).arg("-w").arg("-o").arg(&program).arg(&source).output().expect("cc");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = Command::new(&program).output().expect("running the C program");
    for file in [&source, &program] {
        std::fs::remove_file(file).expect("removing the C program");
    }
    String::from_utf8(output.stdout)
        .expect("text")
        .lines()
        .map(|line| line.split_once(' ').expect("key and value"))
        .map(|(key, value)| (key.to_owned(), value.parse().expect("a number")))
        .collect()
}

/// Compiles and runs a C program that prints the size of each structure, and of each field, as `structure.field`, its offset.
/// `spelled`: a structure's type and a field in C.
pub fn measure(
    name: &str,
    headers: &[&str],
    layouts: &[Layout],
    spelled: impl Fn(&str, &str) -> (String, String),
) -> BTreeMap<String, i64> {
    let mut body = String::new();
    for Layout { name, fields, .. } in layouts {
        writeln!(body, "printf(\"{name} %zu\\n\", sizeof({}));", spelled(name, "").0).expect("string");
        for (field, _) in fields {
            let (c_type, c_field) = spelled(name, field);
            let key = field_key(field);
            writeln!(body, "printf(\"{name}.{key} %zu\\n\", offsetof({c_type}, {c_field}));")
                .expect("string");
        }
    }
    run_c(name, headers, &body)
}

/// Each number has the value of the installed headers.
pub fn expect_numbers(name: &str, headers: &[&str], numbers: &[(&str, i64)]) {
    let mut body = String::new();
    for (name, _) in numbers {
        writeln!(body, "printf(\"{name} %lld\\n\", (long long)({name}));").expect("string");
    }
    let found = run_c(name, headers, &body);
    for (name, value) in numbers {
        assert_eq!(found[*name], *value, "{name}");
    }
}
