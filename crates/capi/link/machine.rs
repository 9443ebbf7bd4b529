//! The machine that libraries and command are linked for, and the tools for it: those of this machine, or Debian's cross compiler.

use std::ffi::OsString;
use std::process::Command;
use std::{env, io};

/// An architecture, as in `std::env::consts::ARCH`, and what makes programs for it.
#[derive(Clone, Debug)]
pub struct Machine {
    arch: String,
}

impl Machine {
    /// This one.
    #[must_use]
    pub fn this() -> Self {
        Self::of(env::consts::ARCH)
    }

    /// The one of this architecture, with a cross compiler unless it is this one.
    #[must_use]
    pub fn of(arch: &str) -> Self {
        Self { arch: arch.into() }
    }

    /// Its architecture.
    #[must_use]
    pub fn arch(&self) -> &str {
        &self.arch
    }

    /// The C compiler.
    #[must_use]
    pub fn compiler(&self) -> Command {
        self.tool("CC", "cc", "gcc")
    }

    /// A program of binutils.
    #[must_use]
    pub fn binutil(&self, name: &str) -> Command {
        self.tool(&name.to_uppercase(), name, name)
    }

    /// The loader of its programs.
    ///
    /// # Errors
    /// An architecture whose loader isn't known.
    pub fn loader(&self) -> io::Result<&'static str> {
        match &*self.arch {
            "x86_64" => Ok("ld-linux-x86-64.so.2"),
            "aarch64" => Ok("ld-linux-aarch64.so.1"),
            arch => Err(io::Error::other(format!("the loader of {arch} isn't known"))),
        }
    }

    fn tool(&self, variable: &str, here: &str, elsewhere: &str) -> Command {
        if self.arch != env::consts::ARCH {
            return Command::new(format!("{}-linux-gnu-{elsewhere}", self.arch));
        }
        Command::new(env::var_os(variable).unwrap_or_else(|| OsString::from(here)))
    }
}
