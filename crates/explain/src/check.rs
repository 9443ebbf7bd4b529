//! What `--check` and `FERROCE_CHECK` ask for.

use crate::{FINDINGS, nearest, number_of};
use std::str::FromStr;

/// Which checks run, and what a finding causes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Check {
    /// The first finding ends the process.
    pub fatal: bool,
    /// The memory of requests is compared, too.
    pub memory: bool,
    /// Numbers of findings that aren't reported.
    suppressed: Vec<u16>,
}

impl Check {
    /// Whether findings of this number are reported.
    #[must_use]
    pub fn reports(&self, number: u16) -> bool {
        !self.suppressed.contains(&number)
    }
}

impl FromStr for Check {
    type Err = String;

    /// A list, separated by commas, of `on`, `fatal`, `memory` and suppressed findings such as `-FC102`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut check = Self::default();
        for word in text.split(',') {
            match (word, word.strip_prefix('-')) {
                ("on", _) => {}
                ("fatal", _) => check.fatal = true,
                ("memory", _) => check.memory = true,
                (_, Some(id)) => {
                    let finding = number_of(id).filter(|n| FINDINGS.iter().any(|entry| entry.number == *n));
                    let unknown = || format!("{id:?} isn't a finding; `ferroce explain` lists them");
                    check.suppressed.push(finding.ok_or_else(unknown)?);
                }
                _ => {
                    let meant = nearest(word, ["on", "fatal", "memory"]);
                    let meant = meant.map_or_else(String::new, |meant| format!(" (did you mean {meant}?)"));
                    return Err(format!(
                        "{word:?} isn't on, fatal, memory, or -FC102 to leave out a finding{meant}"
                    ));
                }
            }
        }
        Ok(check)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_what_is_fatal_and_what_is_ignored() {
        assert_eq!("on".parse(), Ok(Check::default()));
        let check: Check = "fatal,-FC102,-fc106".parse().expect("a list");
        assert!(check.fatal && check.reports(100) && !check.reports(102) && !check.reports(106));
        assert_eq!("memory".parse(), Ok(Check { memory: true, ..Check::default() }));
        for wrong in ["", "fatel", "FC102", "-FC034", "-FC999", "on,,fatal"] {
            assert!(wrong.parse::<Check>().is_err(), "{wrong:?}");
        }
    }
}
