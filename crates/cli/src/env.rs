//! `ferroce env` and `ferroce run --print-env`: the variables of `ferroce run`, for programs that are started by other means.

use std::ffi::OsStr;
use std::process::{Command, ExitCode};

use serde_json::{Map, Value};

use crate::run;

/// How variables are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// `export NAME='value'`, for a shell
    Shell,
    /// `NAME=value`, for a file that names variables
    Lines,
    /// An object
    Json,
}

/// Prints the variables that `ferroce run` would set. `name` is the subcommand's, for errors.
pub fn print(name: &str, format: Format, options: &run::RunOptions<'_>) -> ExitCode {
    // Only its environment counts.
    let mut holder = Command::new("true");
    let text = run::set_environment(&mut holder, options).and_then(|_| write(format, &holder));
    match text {
        Ok(text) => crate::output::print(&text),
        Err(says) => {
            says.lines().for_each(|line| eprintln!("ferroce {name}: {line}"));
            ExitCode::FAILURE
        }
    }
}

fn write(format: Format, holder: &Command) -> Result<String, String> {
    let mut variables = Vec::new();
    for (name, value) in holder.get_envs() {
        let text = |text: &OsStr| text.to_str().map(str::to_owned);
        match (text(name), value.and_then(text)) {
            (Some(name), Some(value)) => variables.push((name, value)),
            _ => return Err(format!("{} isn't text in UTF-8; fix: unset it", name.display())),
        }
    }
    Ok(match format {
        Format::Shell => variables
            .iter()
            .map(|(name, value)| format!("export {name}='{}'\n", value.replace('\'', "'\\''")))
            .collect(),
        Format::Lines => {
            if let Some((name, _)) = variables.iter().find(|(_, value)| value.contains('\n')) {
                return Err(format!("{name} has several lines; fix: leave out --lines"));
            }
            variables.iter().map(|(name, value)| format!("{name}={value}\n")).collect()
        }
        Format::Json => {
            let all: Map<String, Value> =
                variables.into_iter().map(|(name, value)| (name, Value::from(value))).collect();
            format!("{:#}\n", Value::from(all))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_for_a_shell_and_refused_where_a_line_is_all_there_is() {
        let mut holder = Command::new("true");
        holder.env("A", "it's");
        assert_eq!(write(Format::Shell, &holder).unwrap(), "export A='it'\\''s'\n");
        assert_eq!(write(Format::Lines, &holder).unwrap(), "A=it's\n");
        holder.env("B", "x\ny");
        assert!(write(Format::Lines, &holder).unwrap_err().starts_with("B has several lines"));
    }
}
