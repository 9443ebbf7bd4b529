//! `cargo xtask matrix`: writes `docs/MATRIX.md` and a section of `docs/CONFORMANCE.md` from the tables of symbols and of man pages.

use crate::dist::{self, ibverbs, rdmacm};
use ferroce_tests::pages::{Check, Fact, facts};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::{fs, io};

/// The conformance programs that check a function, by the function's name.
type Checked = BTreeMap<String, BTreeSet<String>>;

/// Writes the page, or with `check` fails when the committed one differs.
///
/// # Errors
/// The page can't be written or read, or it is out of date.
pub fn matrix(check: bool) -> io::Result<()> {
    let docs = dist::workspace().join("docs");
    let facts = facts();
    let checked = checked(&dist::workspace().join("tests/conformance"))?;
    let conformance = fs::read_to_string(docs.join("CONFORMANCE.md"))?;
    let pages = [
        ("MATRIX.md", page(&ibverbs::parse(ibverbs::TABLE), &checked, &facts)),
        ("CONFORMANCE.md", with_section(&conformance, &section(&facts))?),
    ];
    for (name, page) in pages {
        let path = docs.join(name);
        if !check {
            fs::write(path, page)?;
        } else if fs::read_to_string(path)? != page {
            return Err(io::Error::other(format!("docs/{name} is out of date: run `cargo xtask matrix`")));
        }
    }
    Ok(())
}

const SECTION: &str = "## Page by page\n";
/// The section that follows.
const NEXT: &str = "## Skipped on Ferroce\n";

/// The page of the conformance suite with our section in it, before [`NEXT`].
fn with_section(page: &str, section: &str) -> io::Result<String> {
    let Some((before, after)) = page.split_once(NEXT) else {
        return Err(io::Error::other(format!("docs/CONFORMANCE.md has no {NEXT:?}")));
    };
    let before = before.split_once(SECTION).map_or(before, |(before, _)| before);
    Ok(format!("{before}{SECTION}{section}\n{NEXT}{after}"))
}

/// How many facts each page documents, and why some don't apply.
fn section(facts: &[Fact]) -> String {
    let mut pages: BTreeMap<&str, Vec<&Fact>> = BTreeMap::new();
    for fact in facts {
        pages.entry(fact.page).or_default().push(fact);
    }
    let mut section = String::from(
        "\nWhat the man pages of rdma-core document (of libibverbs: v65; of librdmacm: v44, and of the calls that are newer): return values, errnos, completion statuses and events, flags, limits and other \
         rules.\nEach has a row in `tests/conformance/pages.tsv` that names its check, or contains the reason why it doesn't apply. The suite's tests see to it \
         that\nthese checks are there and are run, and that every public function has its rows. Functions without a page are last.\n\n\
         | page | documented | checked | doesn't apply |\n|---|---|---|---|\n",
    );
    let rows = pages.iter().filter(|(page, _)| **page != "-").chain(pages.get_key_value("-"));
    let mut sums = [0; 2];
    for (page, facts) in rows {
        let checked = facts.iter().filter(|fact| fact.is_checked()).count();
        let name = if *page == "-" { "no page".to_owned() } else { format!("`{page}`") };
        let (all, rest) = (facts.len(), facts.len() - checked);
        writeln!(section, "| {name} | {all} | {checked} | {rest} |").expect("writing to a string");
        sums = [sums[0] + all, sums[1] + checked];
    }
    let [all, checked] = sums;
    writeln!(section, "| all | {all} | {checked} | {} |\n\nWhat doesn't apply:\n", all - checked)
        .expect("writing to a string");
    for fact in facts {
        if let Check::NotApplicable(why) = fact.check {
            writeln!(section, "- `{}`: {}: {why}", fact.function, fact.what).expect("writing to a string");
        }
    }
    section
}

/// Every `FUNCTION(3)` in the suite's sources: a check's name begins with the man page that it checks.
fn checked(suite: &Path) -> io::Result<Checked> {
    let mut checked = Checked::new();
    for entry in fs::read_dir(suite)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "c") {
            continue;
        }
        let program = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let source = fs::read_to_string(&path)?;
        for (end, _) in source.match_indices("(3): ") {
            let before = &source[..end];
            let letters = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let function = &before[before.trim_end_matches(letters).len()..];
            checked.entry(function.to_owned()).or_default().insert(program.clone());
        }
    }
    Ok(checked)
}

/// The cell of a function: the programs that check it, and how many of the facts that its pages document are checked.
fn programs(checked: &Checked, facts: &[Fact], function: &str) -> String {
    let name = function.trim_start_matches('_');
    let of_it = || facts.iter().filter(|fact| fact.function.trim_start_matches('_') == name);
    let named = of_it().filter_map(Fact::program).map(str::to_owned);
    let programs: BTreeSet<String> = checked.get(name).into_iter().flatten().cloned().chain(named).collect();
    let mut words: Vec<String> = programs.iter().map(|program| format!("`{program}`")).collect();
    let (all, checked) = (of_it().count(), of_it().filter(|fact| fact.is_checked()).count());
    if all > 0 {
        words.push(format!("{checked}/{all}"));
    }
    words.join(", ")
}

fn page(symbols: &[ibverbs::Symbol], checked: &Checked, facts: &[Fact]) -> String {
    let (private, public): (Vec<_>, Vec<_>) = symbols
        .iter()
        .partition(|symbol| symbol.versions.iter().all(|version| version.node.contains("PRIVATE")));
    let mut page = String::from(
        "# What libibverbs.so.1 and librdmacm.so.1 export\n\n\
         Generated by `cargo xtask matrix` from `crates/capi/ibverbs/*.tsv`, `crates/capi/rdmacm/symbols.tsv` and `tests/conformance`; do not \
         edit.\n\n\
         *yes*: behaves as its man page specifies. *no*: returns the documented \"not supported\" error. *ignored*: \
         accepted, without effect, because the effect has no meaning here. *data*: not a function. *Used by*: \
         programs and libraries of Debian and of rdma-core that import the name. *Man page checked*: the programs of \
         `tests/conformance` that check the function, and how many of the values, errnos, flags, limits and rules that \
         its man pages document are checked; the others don't apply ([CONFORMANCE.md](CONFORMANCE.md) contains the reasons).\n",
    );
    for (title, symbols) in
        [("Public", public), ("Private nodes, for distribution builds of libmlx5 and libefa", private)]
    {
        let done = symbols.iter().filter(|symbol| symbol.state == "yes").count();
        write!(page, "\n## {title}\n\n{done} of {} are implemented.\n\n", symbols.len())
            .expect("writing to a string");
        page.push_str(
            "| symbol | versions | implemented | man page checked | used by |\n|---|---|---|---|---|\n",
        );
        for symbol in symbols {
            let versions: Vec<&str> = symbol.versions.iter().map(|version| version.node.as_str()).collect();
            let users = if symbol.users == "-" { "" } else { &symbol.users };
            let (name, versions, checks) =
                (&symbol.name, versions.join(", "), programs(checked, facts, &symbol.name));
            writeln!(page, "| `{name}` | {versions} | {} | {checks} | {users} |", symbol.state)
                .expect("writing to a string");
        }
    }
    let inline = ibverbs::parse_inline(ibverbs::INLINE);
    let done = inline.iter().filter(|function| function.state == "yes").count();
    write!(
        page,
        "\n## Inline functions of the header\n\n\
         They call through the device context, so programs don't import them. {done} of {} are implemented.\n\n\
         | function | implemented | man page checked | what there is |\n|---|---|---|---|\n",
        inline.len()
    )
    .expect("writing to a string");
    for function in inline {
        let remark = if function.remark == "-" { "" } else { &function.remark };
        let (name, checks) = (&function.name, programs(checked, facts, &function.name));
        writeln!(page, "| `{name}` | {} | {checks} | {remark} |", function.state)
            .expect("writing to a string");
    }
    page.push_str(&of_connections(checked, facts));
    page
}

/// What librdmacm.so.1 has, and what its header has on top.
fn of_connections(checked: &Checked, facts: &[Fact]) -> String {
    let exports = rdmacm::parse(rdmacm::TABLE);
    let mut section = format!(
        "\n## librdmacm.so.1\n\nAll {} are implemented: connections in `libibverbs.so.1`, to which the library jumps, and rsockets in it.\n\n\
         | symbol | version | man page checked | where |\n|---|---|---|---|\n",
        exports.len()
    );
    for export in &exports {
        let place = match export.place {
            rdmacm::Place::Engine => "libibverbs.so.1",
            rdmacm::Place::Rsocket => "librdmacm.so.1",
        };
        let (name, node, checks) = (&export.name, &export.node, programs(checked, facts, &export.name));
        writeln!(section, "| `{name}` | {node} | {checks} | {place} |").expect("writing to a string");
    }
    section.push_str(
        "\n## Inline functions of `<rdma/rdma_cma.h>` and `<rdma/rdma_verbs.h>`\n\n\
         They are compiled into programs, and work on what ids show.\n\n| function | man page checked |\n|---|---|\n",
    );
    let exported: BTreeSet<&str> = exports.iter().map(|export| export.name.as_str()).collect();
    let inline: BTreeSet<&str> = facts
        .iter()
        .filter(|fact| fact.page == fact.function && fact.page.starts_with("rdma_"))
        .filter(|fact| fact.program().is_some())
        .map(|fact| fact.function)
        .filter(|function| !exported.contains(function))
        .collect();
    for function in inline {
        writeln!(section, "| `{function}` | {} |", programs(checked, facts, function))
            .expect("writing to a string");
    }
    section
}
