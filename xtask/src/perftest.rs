//! `cargo xtask perftest`: runs perftest's whole matrix and writes `docs/PERFTEST.md`.

use crate::{apt, dist};
use clap::ValueEnum;
use ferroce_tests::perftest::{Cell, Place, TOOLS, Verdict};
use ferroce_tests::{Skip, tool};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

/// A cell at a place ends within this, also on a machine that does something else beside it.
const LIMIT: Duration = Duration::from_secs(100);

/// A cell with what came of it.
struct Row {
    cell: Cell,
    /// What came out at each place; `None` where the cell has not run.
    result: Result<[Option<Verdict>; Place::ALL.len()], Refused>,
}

/// perftest doesn't take the options of a cell; its reason.
struct Refused(String);

/// Which cells run.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Run {
    /// All
    All,
    /// Those without a verdict from an earlier run
    Rest,
    /// None: write the page from the verdicts that there are
    None,
}

/// Runs cells whose line contains `only` at all places; writes the page when that was the whole matrix.
///
/// The verdicts are written down as they come. They lie in `perftest/` of the target directory, with
/// what both sides of a failing cell wrote.
///
/// # Errors
/// The build fails, this machine lacks perftest or namespaces, or a cell fails.
pub fn perftest(only: Option<&str>, run: Run) -> io::Result<()> {
    if run != Run::None {
        apt::install_for_tests();
        dist::dist("release")?;
    }
    let lacking = |skip: Skip| io::Error::other(skip.0);
    tool(TOOLS[0], "perftest").map_err(lacking)?;
    let journal = Journal::open(dist::target().join("perftest"), run != Run::All || only.is_some())?;
    let known = if run == Run::All { HashMap::new() } else { journal.verdicts()? };
    let cells =
        Cell::all().into_iter().filter(|cell| only.is_none_or(|part| cell.to_string().contains(part)));
    let mut rows: Vec<Row> = Vec::new();
    for cell in cells {
        // Without the connection options can't be judged.
        if rows.iter().any(|row| row.result.is_err() && row.cell == (Cell { options: "", ..cell })) {
            continue;
        }
        if let Some(reason) = cell.refusal()? {
            println!("{cell}: refused by perftest: {reason}");
            rows.push(Row { cell, result: Err(Refused(reason)) });
            continue;
        }
        let mut verdicts = [const { None }; Place::ALL.len()];
        for (place, slot) in Place::ALL.into_iter().zip(&mut verdicts) {
            let line = format!("{cell}, {place}");
            *slot = known.get(&line).cloned();
            if slot.is_some() || run == Run::None {
                continue;
            }
            let (verdict, said) = cell.run(place, LIMIT).map_err(lacking)?;
            println!("{line}: {}", word(&verdict));
            journal.add(&line, &verdict, &said)?;
            *slot = Some(verdict);
        }
        rows.push(Row { cell, result: Ok(verdicts) });
    }
    if only.is_none() {
        fs::write(dist::workspace().join("docs/PERFTEST.md"), page(&rows))?;
    }
    println!("{}", summary(&rows));
    if sum(&rows).1 == 0 {
        Ok(())
    } else {
        Err(io::Error::other(format!("see {}", journal.directory.display())))
    }
}

/// Verdicts, written down as they come: the whole matrix takes long.
struct Journal {
    directory: PathBuf,
}

impl Journal {
    fn open(directory: PathBuf, keep: bool) -> io::Result<Self> {
        if !keep && directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        fs::create_dir_all(&directory)?;
        Ok(Self { directory })
    }

    fn file(&self) -> PathBuf {
        self.directory.join("verdicts")
    }

    fn add(&self, line: &str, verdict: &Verdict, said: &str) -> io::Result<()> {
        let word = match verdict {
            Verdict::Ok => "ok",
            Verdict::Fails(reason) => {
                fs::write(self.directory.join(line.replace(' ', "_")), said)?;
                reason
            }
        };
        let mut file = fs::OpenOptions::new().append(true).create(true).open(self.file())?;
        file.write_all(format!("{line}\t{word}\n").as_bytes())
    }

    /// The last verdict of each line.
    fn verdicts(&self) -> io::Result<HashMap<String, Verdict>> {
        let text = if self.file().exists() { fs::read_to_string(self.file())? } else { String::new() };
        let entries = text.lines().filter_map(|entry| entry.split_once('\t'));
        let verdict = |word: &str| if word == "ok" { Verdict::Ok } else { Verdict::Fails(word.into()) };
        Ok(entries.map(|(line, word)| (line.to_owned(), verdict(word))).collect())
    }
}

impl Row {
    /// How many of its runs have a verdict, and how many of those failed.
    fn counts(&self) -> (usize, usize) {
        let verdicts: Vec<&Verdict> = self.result.iter().flatten().flatten().collect();
        let failing = verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Fails(_))).count();
        (verdicts.len(), failing)
    }
}

fn word(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Ok => "ok".into(),
        Verdict::Fails(reason) => format!("**fails**: {}", escaped(reason)),
    }
}

fn escaped(text: &str) -> String {
    text.replace('|', "\\|")
}

fn summary(rows: &[Row]) -> String {
    let refused = rows.iter().filter(|row| row.result.is_err()).count();
    let all = (rows.len() - refused) * Place::ALL.len();
    let (run, failing) = sum(rows);
    format!(
        "{} command lines; perftest itself refuses {refused} of them. Of the {all} runs of the others {} are ok, {failing} \
         fail and {} have not run yet.",
        rows.len(),
        run - failing,
        all - run
    )
}

fn sum(rows: &[Row]) -> (usize, usize) {
    rows.iter().map(Row::counts).fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1))
}

fn page(rows: &[Row]) -> String {
    let mut page = format!(
        "# perftest\n\n\
         Generated by `cargo xtask perftest` with Debian's perftest; do not edit.\n\n\
         *ok*: both sides ended with exit code 0, the client printed a line for every message size, the packets went over \
         the fabric that the column names and no other, and nothing was left behind. *refused*: perftest doesn't take \
         these options together, whatever the adapter: perftest reports this before it opens a device. Each line runs with `-n 200` \
         (`-a` with `-n 50`). UC and UD promise nothing when a receiver is too slow: between hosts, a run in which the \
         kernel counted datagrams that found a full socket is repeated, at most twice.\n\n{}\n",
        summary(rows)
    );
    for tool in TOOLS {
        let places = Place::ALL.map(|place| place.to_string()).join(" | ");
        write!(page, "\n## {tool}\n\n| options | {places} |\n|---|{}\n", "---|".repeat(Place::ALL.len()))
            .expect("writing to a string");
        for row in rows.iter().filter(|row| row.cell.tool == tool) {
            let options = format!("-c {} {}", row.cell.connection, row.cell.options);
            let columns = match &row.result {
                Ok(verdicts) => verdicts
                    .each_ref()
                    .map(|verdict| verdict.as_ref().map_or_else(|| "not run yet".into(), word))
                    .join(" | "),
                Err(Refused(reason)) => {
                    let columns = vec!["refused"; Place::ALL.len()].join(" | ");
                    columns.replacen("refused", &format!("refused: {}", escaped(reason)), 1)
                }
            };
            writeln!(page, "| `{}` | {columns} |", options.trim_end()).expect("writing to a string");
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_says_what_is_ok_refused_and_failing() {
        let cell = Cell::named("ib_read_bw -c RC -e");
        let fails = Verdict::Fails("client dies of signal 6".into());
        let mut verdicts = [const { Some(Verdict::Ok) }; Place::ALL.len()];
        (verdicts[1], verdicts[2]) = (Some(fails), None);
        let rows = [
            Row { cell, result: Ok(verdicts) },
            Row { cell: Cell::named("ib_read_bw -c RC --use-srq"), result: Err(Refused("only SEND".into())) },
        ];
        let page = page(&rows);
        assert!(page.contains("2 command lines; perftest itself refuses 1 of them. Of the 4 runs"), "{page}");
        assert!(page.contains("2 are ok, 1 fail and 1 have not run yet"), "{page}");
        assert!(
            page.contains("| `-c RC -e` | ok | **fails**: client dies of signal 6 | not run yet | ok |"),
            "{page}"
        );
        assert!(page.contains("| `-c RC --use-srq` | refused: only SEND | refused | refused | refused |"));
    }
}
