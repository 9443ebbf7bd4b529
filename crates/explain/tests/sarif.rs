//! A report in SARIF has the shape that the published schema of version 2.1.0 asks for, as far as reports of ours go: each object
//! has the properties that it must have, and no other than those below, which have the types that they may have.

use Kind::{List, Number, Object, OneOf, Reference, Text};
use ferroce_explain::{CodeLocation, FINDINGS, Finding, ReportFormat};
use serde_json::Value;
use std::collections::BTreeSet;

/// What a property may be.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    /// A reference of RFC 3986.
    Reference,
    OneOf(&'static [&'static str]),
    /// From 1 on.
    Number,
    Object(&'static str),
    List(&'static str),
}

/// A property of an object, what it may be, and whether it must be there.
type Property = (&'static str, Kind, bool);

/// The properties of each kind of object. The schema has more.
const SHAPES: &[(&str, &[Property])] = &[
    (
        "log",
        &[("version", OneOf(&["2.1.0"]), true), ("$schema", Reference, false), ("runs", List("run"), true)],
    ),
    ("run", &[("tool", Object("tool"), true), ("results", List("result"), false)]),
    ("tool", &[("driver", Object("toolComponent"), true)]),
    (
        "toolComponent",
        &[("name", Text, true), ("version", Text, false), ("rules", List("reportingDescriptor"), false)],
    ),
    (
        "reportingDescriptor",
        &[
            ("id", Text, true),
            ("shortDescription", Object("multiformatMessageString"), false),
            ("fullDescription", Object("multiformatMessageString"), false),
            ("help", Object("multiformatMessageString"), false),
        ],
    ),
    ("multiformatMessageString", &[("text", Text, true)]),
    (
        "result",
        &[
            ("ruleId", Text, false),
            ("level", OneOf(&["none", "note", "warning", "error"]), false),
            ("message", Object("message"), true),
            ("locations", List("location"), false),
        ],
    ),
    ("message", &[("text", Text, true)]),
    ("location", &[("physicalLocation", Object("physicalLocation"), false)]),
    (
        "physicalLocation",
        &[("artifactLocation", Object("artifactLocation"), true), ("region", Object("region"), false)],
    ),
    ("artifactLocation", &[("uri", Reference, false)]),
    ("region", &[("startLine", Number, true)]),
];

/// What is wrong with a value, and where.
fn check(value: &Value, kind: Kind, place: &str) -> Result<(), String> {
    let wrong = |what: &str| Err(format!("{place}: {what}: {value}"));
    match kind {
        Text if value.is_string() => Ok(()),
        Reference => {
            let allowed =
                |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!$&'()*+,;=%".contains(&byte);
            match value.as_str().is_some_and(|text| text.bytes().all(allowed)) {
                true => Ok(()),
                false => wrong("no reference"),
            }
        }
        OneOf(names) if value.as_str().is_some_and(|text| names.contains(&text)) => Ok(()),
        Number if value.as_u64().is_some_and(|number| number >= 1) => Ok(()),
        Object(name) => {
            let Some(object) = value.as_object() else { return wrong("no object") };
            let shape = SHAPES.iter().find(|shape| shape.0 == name).expect("a shape of this name").1;
            for (property, value) in object {
                let Some((_, kind, _)) = shape.iter().find(|known| known.0 == property) else {
                    return wrong(&format!("{name} has no {property}"));
                };
                check(value, *kind, &format!("{place}.{property}"))?;
            }
            match shape.iter().find(|(property, _, must)| *must && !object.contains_key(*property)) {
                Some((property, ..)) => wrong(&format!("no {property}")),
                None => Ok(()),
            }
        }
        List(name) => {
            let Some(items) = value.as_array() else { return wrong("no list") };
            items
                .iter()
                .enumerate()
                .try_for_each(|(at, item)| check(item, Object(name), &format!("{place}[{at}]")))
        }
        _ => wrong("another type"),
    }
}

/// A report with a finding of each kind, at no place, at a function, and at places with odd names.
fn report() -> String {
    let places = [
        None,
        Some(CodeLocation { function: "main".into(), source: None }),
        Some(CodeLocation { function: "f\"\\".into(), source: Some(("/src/a b\u{e9}.c".into(), 12)) }),
        Some(CodeLocation { function: "g\u{1b}[2J".into(), source: Some(("../a.c".into(), 1)) }),
    ];
    let format = ReportFormat::Sarif;
    let findings = FINDINGS.iter().zip(places.iter().cycle());
    let entries = findings.enumerate().map(|(at, (entry, place))| {
        let finding = Finding {
            number: entry.number,
            about: "QP 0x000123".into(),
            known: "17\n".into(),
            place: place.clone(),
        };
        format.entry(&finding, (7, "a \"program\""), at == 0)
    });
    format.head() + &entries.collect::<String>() + format.tail()
}

#[test]
fn a_report_has_the_shape_that_the_schema_asks_for() {
    let empty = ReportFormat::Sarif.head() + ReportFormat::Sarif.tail();
    for (report, findings) in [(report(), FINDINGS.len()), (empty, 0)] {
        let log: Value = serde_json::from_str(&report).expect("JSON");
        check(&log, Object("log"), "log").unwrap();
        let run = &log["runs"][0];
        let results = run["results"].as_array().unwrap();
        assert_eq!((log["runs"].as_array().unwrap().len(), results.len()), (1, findings));
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let rules: Vec<_> =
            run["tool"]["driver"]["rules"].as_array().unwrap().iter().map(|rule| text(&rule["id"])).collect();
        assert_eq!(rules.iter().collect::<BTreeSet<_>>().len(), rules.len(), "each rule once");
        assert!(results.iter().all(|result| rules.contains(&text(&result["ruleId"]))));
    }
}

#[test]
fn what_the_schema_refuses_is_refused() {
    let log: Value = serde_json::from_str(&report()).unwrap();
    let refuses = |damage: &dyn Fn(&mut Value)| {
        let mut log = log.clone();
        damage(&mut log);
        check(&log, Object("log"), "log").is_err()
    };
    assert!(!refuses(&|_| ()));
    assert!(refuses(&|log| log["version"] = "2.0.0".into()));
    assert!(refuses(&|log| log["runs"][0]["tool"] = Value::Null));
    assert!(refuses(&|log| log["runs"][0]["results"][0]["level"] = "fatal".into()));
    assert!(refuses(&|log| log["runs"][0]["results"][0]["severity"] = 1.into()));
    assert!(refuses(&|log| drop(log["runs"][0]["results"][0].as_object_mut().unwrap().remove("message"))));
    let place = "/runs/0/results/2/locations/0/physicalLocation";
    assert!(refuses(&|log| log.pointer_mut(place).unwrap()["region"]["startLine"] = 0.into()));
    assert!(refuses(&|log| log.pointer_mut(place).unwrap()["artifactLocation"]["uri"] = "a b".into()));
}
