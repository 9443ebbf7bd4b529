//! The book as a browser shows it, at the width of a desktop and of a phone.

use super::book;
use ferroce_tests::{Browser, Skip, require, tool};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Widths in pixels.
const DESKTOP: u32 = 1280;
const PHONE: u32 = 390;
/// Of the browser's clock: each page has loaded its pictures and scripts by then.
const LOADED: Duration = Duration::from_secs(30);

/// What each page reports of itself: its name, its width, and its complaints.
const REPORT: &str = r#"<script>
addEventListener("load", () => setTimeout(() => {
  const found = [], main = document.querySelector("main"), root = document.documentElement;
  const shown = main.cloneNode(true);
  shown.querySelectorAll("code, script, style").forEach(node => node.remove());
  for (const mark of ["```", "{{#", "](", "**", "<!--"])
    if (shown.textContent.includes(mark)) found.push("raw markdown " + mark);
  if (root.scrollWidth > root.clientWidth) found.push("the page is " + root.scrollWidth + " wide");
  for (const block of main.querySelectorAll("pre > code:not(.language-console, .language-text)"))
    if (innerWidth >= 1000 && block.scrollWidth > block.clientWidth) found.push("code is wider than the page: " + block.textContent.slice(0, 40));
  for (const picture of main.querySelectorAll("img")) {
    if (!picture.complete || !picture.naturalWidth) found.push("not drawn: " + picture.getAttribute("src"));
    else if (picture.getBoundingClientRect().right > root.clientWidth) found.push("beyond the page: " + picture.getAttribute("src"));
  }
  parent.postMessage(location.pathname.split("/book/").pop() + " at " + innerWidth + ": " + (found.join("; ") || "ok"), "*");
}, 1000));
</script>"#;

fn mdbook() -> Result<PathBuf, Skip> {
    let ours = book().join("../target/tools/bin/mdbook");
    if ours.exists() {
        return Ok(ours);
    }
    tool("mdbook", "mdbook")
        .map_err(|_| Skip("mdBook isn't installed; `cargo xtask book` installs it".into()))
}

/// The book as a site in a directory.
fn build(mdbook: &Path, directory: &Path) -> PathBuf {
    let site = directory.join("book");
    let built = Command::new(mdbook).arg("build").arg("--dest-dir").arg(&site).arg(book()).output();
    let built = built.expect("mdBook starts");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    site
}

/// The values of an attribute in a page.
fn values<'a>(text: &'a str, attribute: &str) -> impl Iterator<Item = &'a str> {
    let mark = format!(" {attribute}=\"");
    let parts: Vec<&str> = text.split(&*mark).skip(1).collect();
    parts.into_iter().filter_map(|rest| rest.split_once('"').map(|(value, _)| value))
}

/// mdBook turns `NAME.md` into `NAME.html`, and `README.md` into `index.html`: links of the sources can exist while those of the site don't.
#[test]
fn links_and_pictures_of_the_site_exist() {
    let mdbook = require!(mdbook());
    let directory = ferroce_tests::new_stage("links").expect("/var/tmp");
    let site = build(&mdbook, &directory);
    let mut names = Vec::new();
    pages(&site, "", &mut names);
    let texts: BTreeMap<&str, String> =
        names.iter().map(|name| (&**name, fs::read_to_string(site.join(name)).expect("a page"))).collect();
    let mut dead = BTreeSet::new();
    let mut followed = 0;
    // Paths of the page for missing pages begin at the root of a server.
    for (name, text) in texts.iter().filter(|(name, _)| **name != "404.html") {
        for link in values(text, "href").chain(values(text, "src")).filter(|link| !link.contains(':')) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let folder = Path::new(name).parent().expect("a directory");
            let target = if file.is_empty() { site.join(name) } else { site.join(folder).join(file) };
            let target = target.canonicalize().ok();
            let page = target.as_deref().and_then(|target| target.strip_prefix(&site).ok()?.to_str());
            let has_anchor = || values(&texts[page.unwrap_or(name)], "id").any(|id| id == anchor);
            if target.is_none() || !anchor.is_empty() && !has_anchor() {
                dead.insert(format!("{name}: {link}"));
            }
            followed += 1;
        }
    }
    fs::remove_dir_all(directory).expect("our own directory");
    assert!(dead.is_empty(), "{dead:#?}");
    assert!(followed > 200, "{followed}");
}

/// The pages below a directory, relative to it.
fn pages(site: &Path, folder: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(site.join(folder)).expect("a directory of the site") {
        let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
        let name = format!("{folder}{name}");
        if site.join(&name).is_dir() {
            pages(site, &format!("{name}/"), found);
        } else if name.ends_with(".html") {
            found.push(name);
        }
    }
}

/// `FERROCE_SCREENSHOTS=DIRECTORY` has a picture of each page written there.
#[test]
fn pages_show_no_markdown_fit_the_screen_and_have_their_pictures() {
    let (browser, mdbook) = (require!(Browser::new()), require!(mdbook()));
    let directory = ferroce_tests::new_stage("rendered").expect("/var/tmp");
    let site = build(&mdbook, &directory);
    let mut names = Vec::new();
    pages(&site, "", &mut names);
    names.retain(|name| !["404.html", "toc.html", "print.html"].contains(&&**name));
    let mut frames = String::new();
    for name in &names {
        let text = fs::read_to_string(site.join(name)).expect("a page");
        fs::write(site.join(name), text.replace("</body>", &format!("{REPORT}</body>")))
            .expect("our own file");
        for width in [DESKTOP, PHONE] {
            writeln!(frames, r#"<iframe src="book/{name}" width={width} height=800></iframe>"#)
                .expect("a string");
        }
    }
    let all = directory.join("all.html");
    let collect = "<pre id=reports></pre><script>addEventListener('message', event => reports.append(event.data + '\\n'))</script>";
    fs::write(&all, format!("<!DOCTYPE html><body>{collect}{frames}")).expect("our own file");
    let document = browser.document(&format!("file://{}", all.display()), LOADED);
    let reports = document.split("<pre id=\"reports\">").nth(1).and_then(|rest| rest.split("</pre>").next());
    let reports: Vec<&str> = reports.expect("the reports").lines().collect();
    if let Some(screenshots) = std::env::var_os("FERROCE_SCREENSHOTS") {
        for (name, width) in names.iter().flat_map(|name| [(name, DESKTOP), (name, PHONE)]) {
            let file = Path::new(&screenshots).join(format!("{}-{width}.png", name.replace('/', "-")));
            browser.screenshot(&format!("file://{}", site.join(name).display()), (width, 2000), &file);
        }
    }
    fs::remove_dir_all(directory).expect("our own directory");
    let complaints: Vec<&&str> = reports.iter().filter(|report| !report.ends_with(": ok")).collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
    assert_eq!(reports.len(), 2 * names.len(), "{reports:#?}");
}
