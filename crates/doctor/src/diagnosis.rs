//! One finding, and what findings name.

/// How much a finding matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Severity {
    /// As it should be.
    Ok,
    /// Something is slower, or can't be known from here.
    Warning,
    /// Would stop a program.
    Error,
}

impl Severity {
    /// As it is printed, and in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// One sentence about this host, and the fix if there is one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Diagnosis {
    pub(crate) level: Severity,
    /// What was looked at. It stays the same in later versions.
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) fix: Option<String>,
}

impl Diagnosis {
    pub(crate) fn ok(code: &'static str, message: impl Into<String>) -> Self {
        Self { level: Severity::Ok, code, message: message.into(), fix: None }
    }

    pub(crate) fn warning(code: &'static str, message: impl Into<String>) -> Self {
        Self { level: Severity::Warning, code, message: message.into(), fix: None }
    }

    pub(crate) fn error(code: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level: Severity::Error, code, message: message.into(), fix: Some(fix.into()) }
    }

    pub(crate) fn with_fix(self, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }
}

/// The name of a user, or the number where there is none.
pub(crate) fn user_name(uid: u32) -> String {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    match user_in(&users, uid) {
        Some(name) => format!("{name} (uid {uid})"),
        None => format!("uid {uid}"),
    }
}

fn user_in(passwd: &str, uid: u32) -> Option<&str> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_looked_up_by_number() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nalice:x:1000:100::/home/alice:/bin/sh\nbroken\n";
        assert_eq!(user_in(passwd, 1000), Some("alice"));
        assert_eq!(user_in(passwd, 100), None);
    }
}
