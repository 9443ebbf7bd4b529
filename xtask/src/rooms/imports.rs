//! Reading a crate's modules: which of its rooms names which others, and where.
//!
//! In here: the module tree as the compiler sees it without `cfg(test)`; `use`, paths in code, in types and within macros.
//! Out of here: what may name what.

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};
use syn::ext::IdentExt;
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprLit, Item, ItemMod, Lit, Meta, Token, UseTree};

/// The room of what stands in `lib.rs` or `main.rs` itself.
pub const ROOT: &str = "(root)";

/// Where something is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub file: PathBuf,
    pub line: usize,
}

/// Which names which, and where first.
pub type Arrows = BTreeMap<(String, String), Place>;

/// A crate's rooms.
#[derive(Default)]
pub struct Rooms {
    /// The top-level modules.
    pub names: BTreeSet<String>,
    /// From a room to another.
    pub arrows: Arrows,
}

/// Reads the crate whose root file is `root`.
///
/// # Errors
/// A file is missing or isn't Rust.
pub fn read(root: &Path) -> io::Result<Rooms> {
    let mut files = Files::default();
    let directory = root.parent().unwrap_or(Path::new("."));
    files.file(root, directory, &[])?;
    Ok(files.resolve())
}

/// A path as it's written, in the module that writes it.
struct Named {
    module: Vec<String>,
    words: Vec<String>,
    place: Place,
}

#[derive(Default)]
struct Files {
    names: BTreeSet<String>,
    named: Vec<Named>,
    /// What the root imports: the name there, and the path behind it.
    root_uses: BTreeMap<String, Vec<String>>,
}

impl Files {
    /// `directory` is where the file's child modules are.
    fn file(&mut self, path: &Path, directory: &Path, module: &[String]) -> io::Result<()> {
        let wrong = |what: String| io::Error::other(format!("{}: {what}", path.display()));
        let source = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let file = syn::parse_file(&source)
            .map_err(|error| wrong(format!("line {}: {error}", error.span().start().line)))?;
        self.items(&file.items, path, directory, module)
    }

    fn items(&mut self, items: &[Item], path: &Path, directory: &Path, module: &[String]) -> io::Result<()> {
        for item in items {
            match item {
                Item::Mod(inner) => {
                    if !is_off(&inner.attrs) {
                        self.module(inner, path, directory, module)?;
                    }
                }
                // An import of the root is only a shorter name: its users depend on the item behind it.
                Item::Use(item) if module.is_empty() => {
                    if !is_off(&item.attrs) {
                        let mut leaves = Vec::new();
                        flatten(&item.tree, &mut Vec::new(), &mut leaves);
                        for leaf in leaves {
                            self.root_uses.insert(leaf.name, leaf.words);
                        }
                    }
                }
                item => Reader { files: self, path, module }.visit_item(item),
            }
        }
        Ok(())
    }

    fn module(&mut self, item: &ItemMod, path: &Path, directory: &Path, module: &[String]) -> io::Result<()> {
        let name = item.ident.unraw().to_string();
        if module.is_empty() {
            self.names.insert(name.clone());
        }
        let mut inner = module.to_vec();
        inner.push(name.clone());
        let below = directory.join(&name);
        if let Some((_, items)) = &item.content {
            return self.items(items, path, &below, &inner);
        }
        if let Some(elsewhere) = path_attribute(&item.attrs) {
            let file = path.parent().unwrap_or(Path::new(".")).join(elsewhere);
            let below = file.parent().unwrap_or(Path::new(".")).to_owned();
            return self.file(&file, &below, &inner);
        }
        let beside = directory.join(format!("{name}.rs"));
        let file = if beside.exists() { beside } else { below.join("mod.rs") };
        self.file(&file, &below, &inner)
    }

    fn resolve(self) -> Rooms {
        let mut rooms = Rooms { names: self.names.clone(), ..Rooms::default() };
        for named in &self.named {
            let from = named.module.first().map_or(ROOT, String::as_str);
            let Some(to) = self.room_of(&named.module, &named.words) else { continue };
            if from != to {
                let arrow = rooms.arrows.entry((from.to_owned(), to));
                arrow.or_insert_with(|| named.place.clone());
            }
        }
        rooms
    }

    /// The room that a path leads to; `None` if it stays within its module or leads out of the crate.
    fn room_of(&self, module: &[String], words: &[String]) -> Option<String> {
        let mut base = module;
        let mut rest = words;
        match words.first()?.as_str() {
            "crate" => (base, rest) = (&[], &words[1..]),
            "self" => rest = &words[1..],
            "super" => {
                while let Some("super") = rest.first().map(String::as_str) {
                    (base, rest) = (base.split_last()?.1, &rest[1..]);
                }
            }
            // Without such a word it's a child, something imported, or another crate.
            first => return (module.is_empty() && self.names.contains(first)).then(|| first.to_owned()),
        }
        if let Some(room) = base.first() {
            return Some(room.clone());
        }
        let Some(first) = rest.first() else { return Some(ROOT.to_owned()) };
        if self.names.contains(first) {
            return Some(first.clone());
        }
        match self.root_uses.get(first) {
            None => Some(ROOT.to_owned()),
            Some(behind) if behind.first().is_some_and(|word| *word != *first) => self.room_of(&[], behind),
            Some(_) => None,
        }
    }
}

/// Collects the paths of an item.
struct Reader<'a> {
    files: &'a mut Files,
    path: &'a Path,
    module: &'a [String],
}

impl Reader<'_> {
    fn add(&mut self, words: Vec<String>, span: Span) {
        let place = Place { file: self.path.to_owned(), line: span.start().line };
        self.files.named.push(Named { module: self.module.to_vec(), words, place });
    }

    /// Finds `crate::…` and `super::…` among a macro's tokens, which have no grammar.
    fn tokens(&mut self, tokens: TokenStream) {
        let trees: Vec<TokenTree> = tokens.into_iter().collect();
        for (index, tree) in trees.iter().enumerate() {
            match tree {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(first) if first == "crate" || first == "super" => {
                    for words in words_from(&trees[index..]) {
                        self.add(words, first.span());
                    }
                }
                _ => {}
            }
        }
    }
}

/// The path at the beginning of `trees`, or those of the group in which it ends.
fn words_from(trees: &[TokenTree]) -> Vec<Vec<String>> {
    let is_colon = |tree: Option<&TokenTree>| matches!(tree, Some(TokenTree::Punct(p)) if p.as_char() == ':');
    let (mut words, mut rest) = (Vec::new(), trees);
    while let Some(TokenTree::Ident(word)) = rest.first() {
        words.push(word.unraw().to_string());
        if !is_colon(rest.get(1)) || !is_colon(rest.get(2)) {
            // Alone it's a visibility.
            return if words.len() > 1 { vec![words] } else { Vec::new() };
        }
        rest = &rest[3..];
    }
    match rest.first() {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
            let inner: Vec<TokenTree> = group.stream().into_iter().collect();
            let parts = inner
                .split(|tree| matches!(tree, TokenTree::Punct(p) if p.as_char() == ','))
                .filter_map(|part| match part.first() {
                    Some(TokenTree::Ident(word)) => Some(word.unraw().to_string()),
                    _ => None,
                });
            parts.map(|word| words.iter().cloned().chain([word]).collect()).collect()
        }
        _ => vec![words],
    }
}

macro_rules! skip_what_is_off {
    ($($visit:ident: $node:ident),* $(,)?) => {
        $(fn $visit(&mut self, node: &'ast syn::$node) {
            if !is_off(&node.attrs) {
                visit::$visit(self, node);
            }
        })*
    };
}

impl<'ast> Visit<'ast> for Reader<'_> {
    skip_what_is_off! {
        visit_arm: Arm, visit_expr_block: ExprBlock, visit_expr_call: ExprCall, visit_expr_if: ExprIf,
        visit_expr_method_call: ExprMethodCall, visit_field: Field, visit_field_value: FieldValue,
        visit_impl_item_const: ImplItemConst, visit_impl_item_fn: ImplItemFn, visit_impl_item_type: ImplItemType,
        visit_item_const: ItemConst, visit_item_enum: ItemEnum, visit_item_fn: ItemFn,
        visit_item_foreign_mod: ItemForeignMod, visit_item_impl: ItemImpl, visit_item_macro: ItemMacro,
        visit_item_mod: ItemMod, visit_item_static: ItemStatic, visit_item_struct: ItemStruct,
        visit_item_trait: ItemTrait, visit_item_type: ItemType, visit_item_union: ItemUnion, visit_local: Local,
        visit_stmt_macro: StmtMacro, visit_trait_item_const: TraitItemConst, visit_trait_item_fn: TraitItemFn,
        visit_trait_item_type: TraitItemType, visit_variant: Variant,
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if is_off(&item.attrs) {
            return;
        }
        let mut leaves = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut leaves);
        for leaf in leaves {
            self.add(leaf.words, leaf.span);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let words = path.segments.iter().map(|segment| segment.ident.unraw().to_string());
        self.add(words.collect(), path.segments[0].ident.span());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.tokens(item.tokens.clone());
        visit::visit_macro(self, item);
    }

    /// `pub(in crate::x)` isn't a use of x.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}

/// One name that a `use` brings.
struct Leaf {
    name: String,
    words: Vec<String>,
    span: Span,
}

fn flatten(tree: &UseTree, prefix: &mut Vec<String>, leaves: &mut Vec<Leaf>) {
    let words = |last: String| prefix.iter().cloned().chain((last != "self").then_some(last)).collect();
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.unraw().to_string());
            flatten(&path.tree, prefix, leaves);
            prefix.pop();
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, prefix, leaves)),
        UseTree::Name(leaf) => {
            let last = leaf.ident.unraw().to_string();
            let name = if last == "self" { prefix.last().cloned().unwrap_or_default() } else { last.clone() };
            leaves.push(Leaf { name, words: words(last), span: leaf.ident.span() });
        }
        UseTree::Rename(leaf) => {
            let (name, last) = (leaf.rename.unraw().to_string(), leaf.ident.unraw().to_string());
            leaves.push(Leaf { name, words: words(last), span: leaf.ident.span() });
        }
        UseTree::Glob(glob) => {
            leaves.push(Leaf { name: "*".into(), words: prefix.clone(), span: glob.star_token.spans[0] });
        }
    }
}

fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(path), .. }) => Some(path.value()),
            _ => None,
        },
        _ => None,
    })
}

/// Whether something is there in tests only.
fn is_off(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && attribute.parse_args::<Meta>().is_ok_and(|condition| holds(&condition) == Some(false))
    })
}

/// Whether a condition holds outside of tests; `None` if that isn't all that it depends on.
fn holds(condition: &Meta) -> Option<bool> {
    let Meta::List(list) = condition else { return condition.path().is_ident("test").then_some(false) };
    let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).ok()?;
    let mut parts = parts.iter().map(holds);
    if list.path.is_ident("not") {
        parts.next()?.map(|holds| !holds)
    } else {
        // One false makes `all` false, one true makes `any` true, whatever the others are.
        let decisive = list.path.is_ident("any");
        let parts: Vec<_> = parts.collect();
        if parts.contains(&Some(decisive)) {
            return Some(decisive);
        }
        if parts.contains(&None) { None } else { Some(!decisive) }
    }
}
