//! What `--help` prints beyond options: examples, a link, and the subcommands by use.

use clap::Command;

/// Subcommands by use. The test asserts that each visible one is here.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Run programs", &["run", "doctor", "devices", "env"]),
    ("Watch running programs", &["ps", "top", "stats"]),
    ("Find out why", &["trace", "view", "explain"]),
    ("Set up", &["sysfs", "completions", "version", "help"]),
];

const HEAD: &str = "{about-with-newline}\n{usage-heading} {usage}\n";
const TAIL: &str = "\nOptions:\n{options}{after-help}";

/// The end of a help text: commands as they are typed, and where more is written.
macro_rules! examples {
    ($($line:literal),+ $(,)?) => {
        concat!(
            "Examples:\n", $("  ", $line, "\n",)+
            "\nMore: ", env!("CARGO_PKG_REPOSITORY"), "/blob/main/book/src/reference.md"
        )
    };
}
pub(crate) use examples;

/// The command with its subcommands listed by use.
pub fn grouped(command: Command) -> Command {
    let about = |name: &str| match name {
        "help" => Some("Print this text, or the help of a command".to_owned()),
        name => command.find_subcommand(name).and_then(Command::get_about).map(ToString::to_string),
    };
    let mut list = String::new();
    for (title, names) in GROUPS {
        list.push_str(&format!("\n{title}:\n"));
        for name in names {
            list.push_str(&format!("  {name:<12} {}\n", about(name).unwrap_or_default()));
        }
    }
    command.help_template(format!("{HEAD}{list}{TAIL}"))
}

#[cfg(test)]
mod tests {
    use super::GROUPS;
    use crate::arguments::command;

    #[test]
    fn each_subcommand_is_in_one_group_and_its_help_has_examples_and_a_link() {
        let all: Vec<_> = GROUPS.iter().flat_map(|(_, names)| *names).collect();
        let mut command = command();
        let whole = command.render_long_help().to_string();
        assert!(whole.contains("Run programs:\n  run          Run a command, and everything"), "{whole}");
        assert!(whole.contains("\nOptions:\n") && whole.contains("https://"), "{whole}");
        for part in
            command.get_subcommands_mut().filter(|part| !part.is_hide_set() && part.get_name() != "help")
        {
            let name = part.get_name().to_owned();
            assert_eq!(all.iter().filter(|one| ***one == name).count(), 1, "{name}");
            for help in [part.render_help().to_string(), part.render_long_help().to_string()] {
                assert!(help.contains(&format!("Examples:\n  {}", first_word(&name))), "{help}");
                assert!(help.contains("https://"), "{help}");
            }
        }
    }

    /// How the examples of a subcommand begin.
    fn first_word(name: &str) -> String {
        if name == "env" { "eval \"$(ferroce env)\"".into() } else { format!("ferroce {name}") }
    }

    #[test]
    fn help_shows_the_values_of_check_and_strict() {
        let mut command = command();
        let run = command.find_subcommand_mut("run").expect("run");
        let help = run.render_help().to_string();
        for value in ["fatal", "memory", "-FC", "connectx-6", "e810", "fastlinq", "rxe", "udp", "infiniband"]
        {
            assert!(help.contains(value), "{value}: {help}");
        }
    }
}
