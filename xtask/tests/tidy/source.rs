//! How source is written: headers, lengths, columns, ASCII, where `unsafe` may stand.
//!
//! What it never does: parse a word inside of a comment or a string as code; it works on tokens.

use crate::tree::{File, assert_none, files};
use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};

const FUNCTION_LINES_MAX: usize = 70;
const FILE_LINES_MAX: usize = 1_000;
const COLUMNS_MAX: usize = 100;
const BASE_LINES_MAX: usize = 1_500;

/// Functions that are longer, as `path::name` with their lines. A function that shrinks must
/// leave; the aim is an empty table.
const LONGER: &[(&str, usize)] = &[];

/// Where `unsafe` may stand.
const UNSAFE_ROOMS: &[&str] = &[
    "crates/media/",
    "crates/index/",
    "crates/store/",
    "crates/swap/",
    "crates/preload/",
    // A counting allocator cannot be written without it, and tests what users rely on.
    "crates/engine/tests/no_alloc.rs",
];

/// How many lines above an `unsafe` its reason may stand.
const SAFETY_LINES: usize = 12;

/// A finding on its own line: words that are meant to be gone before a commit.
const BANNED: &[&str] = &[
    concat!("FIX", "ME"),
    concat!("TO", "DO"),
    concat!("XX", "X"),
];

fn rust() -> Vec<File> {
    let files = files(&[".rs"]);
    assert!(files.len() > 40, "found {} source files", files.len());
    files
}

fn tokens(file: &File) -> TokenStream {
    file.text
        .parse()
        .unwrap_or_else(|error| panic!("{}: {error}", file.path))
}

/// Calls `see` with every token, and with the tokens that follow it on its level.
fn each_token(stream: TokenStream, see: &mut dyn FnMut(&TokenTree, &[TokenTree])) {
    let level: Vec<TokenTree> = stream.into_iter().collect();
    for (i, token) in level.iter().enumerate() {
        see(token, &level[i + 1..]);
        if let TokenTree::Group(group) = token {
            each_token(group.stream(), see);
        }
    }
}

fn is_word(token: Option<&TokenTree>, word: &str) -> bool {
    matches!(token, Some(TokenTree::Ident(ident)) if ident == word)
}

/// The first block in braces among these tokens, unless a semicolon comes first.
fn block(after: &[TokenTree]) -> Option<Span> {
    for token in after {
        match token {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                return Some(group.span_close());
            }
            TokenTree::Punct(punct) if punct.as_char() == ';' => return None,
            _ => {}
        }
    }
    None
}

#[test]
fn every_file_opens_with_what_it_is() {
    let bare = rust()
        .into_iter()
        .filter(|file| !file.text.starts_with("//! "));
    assert_none(
        &bare
            .map(|file| format!("{} does not open with `//!`", file.path))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn functions_are_short() {
    let mut findings = Vec::new();
    let mut longer = Vec::new();
    for file in rust() {
        each_token(tokens(&file), &mut |token, after| {
            let Some(TokenTree::Ident(name)) = after.first() else {
                return;
            };
            if !is_word(Some(token), "fn") {
                return;
            }
            let Some(end) = block(after) else { return };
            let lines = end.end().line - token.span().start().line + 1;
            let place = format!("{}::{name}", file.path);
            let known = LONGER.iter().find(|(known, _)| *known == place);
            longer.extend(
                known
                    .filter(|(_, most)| lines == *most)
                    .map(|(known, _)| *known),
            );
            if lines > known.map_or(FUNCTION_LINES_MAX, |(_, most)| *most) {
                findings.push(format!("{place} has {lines} lines"));
            }
        });
    }
    let gone = LONGER.iter().filter(|(known, _)| !longer.contains(known));
    findings.extend(gone.map(|(known, _)| format!("{known} is not that long any more")));
    assert_none(&findings);
}

/// Lines of a file without its test modules.
fn lines_without_tests(file: &File) -> usize {
    let mut in_tests = 0;
    each_token(tokens(file), &mut |token, after| {
        let TokenTree::Group(attribute) = token else {
            return;
        };
        let is_test = attribute.delimiter() == Delimiter::Bracket
            && attribute.stream().to_string().replace(' ', "") == "cfg(test)";
        if is_test && is_word(after.first(), "mod") {
            let end = block(after).map_or(0, |end| end.end().line);
            in_tests += (end + 1).saturating_sub(token.span().start().line);
        }
    });
    file.text.lines().count() - in_tests
}

#[test]
fn files_are_short() {
    let is_test = |path: &str| path.contains("/tests/") || path.ends_with("/tests.rs");
    let mut findings = Vec::new();
    let mut base = 0;
    for file in rust().iter().filter(|file| !is_test(&file.path)) {
        let lines = lines_without_tests(file);
        if lines > FILE_LINES_MAX {
            findings.push(format!("{} has {lines} lines without tests", file.path));
        }
        if file.path.starts_with("crates/base/") {
            base += file.text.lines().count();
        }
    }
    if base > BASE_LINES_MAX {
        findings.push(format!(
            "crates/base has {base} lines; what does only one room need?"
        ));
    }
    assert_none(&findings);
}

#[test]
fn lines_are_ascii_and_fit_the_column() {
    let mut findings = Vec::new();
    for file in rust() {
        for (i, line) in file.text.lines().enumerate() {
            let place = format!("{}:{}", file.path, i + 1);
            if !line.is_ascii() {
                findings.push(format!("{place} is not ASCII: write an escape"));
            }
            // A string that must not be broken, such as a URL, has no space to break at.
            let columns = line.chars().count();
            if columns > COLUMNS_MAX && line.trim().contains(' ') {
                findings.push(format!("{place} has {columns} columns"));
            }
        }
    }
    assert_none(&findings);
}

#[test]
fn unsafe_stands_in_its_rooms_only_and_with_its_reason() {
    let mut findings = Vec::new();
    for file in rust() {
        let lines: Vec<&str> = file.text.lines().collect();
        let is_allowed = UNSAFE_ROOMS.iter().any(|room| file.path.starts_with(room));
        each_token(tokens(&file), &mut |token, _| {
            if !is_word(Some(token), "unsafe") {
                return;
            }
            let line = token.span().start().line;
            let place = format!("{}:{line}", file.path);
            if !is_allowed {
                findings.push(format!("{place}: no unsafe here"));
            }
            let near = &lines[line.saturating_sub(SAFETY_LINES + 1)..line];
            let is_reason = |l: &&str| l.contains("SAFETY:") || l.contains("# Safety");
            if !near.iter().any(is_reason) {
                findings.push(format!("{place}: unsafe without a SAFETY: reason"));
            }
        });
    }
    assert_none(&findings);
}

#[test]
fn nothing_unfinished_is_left_behind() {
    let mut findings = Vec::new();
    for file in files(&[".rs", ".md", ".toml", ".sh", "/run"]) {
        for (i, line) in file.text.lines().enumerate() {
            let words = line.split(|c: char| !c.is_ascii_alphanumeric());
            for word in words.filter(|word| BANNED.contains(word)) {
                findings.push(format!("{}:{}: {word}", file.path, i + 1));
            }
        }
    }
    assert_none(&findings);
}

/// Roots under which a path means the same on every machine.
const ROOTS: &[&str] = &[
    "dev",
    "etc",
    "mnt",
    "nonexistent",
    "opt",
    "proc",
    "run",
    "sys",
    "tmp",
    "usr",
    "v1",
    "var",
];

#[test]
fn no_path_of_one_machine_is_named() {
    let mut findings = Vec::new();
    for file in files(&[".rs", ".md", ".toml", ".sh", "/run"]) {
        for (i, line) in file.text.lines().enumerate() {
            for path in absolute_paths(line) {
                findings.push(format!("{}:{}: {path}", file.path, i + 1));
            }
        }
    }
    assert_none(&findings);
}

/// Absolute paths of at least two parts in a line, other than those of every machine.
fn absolute_paths(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split(|c: char| c.is_whitespace() || "\"'`()<>=,:[]{}".contains(c));
    words.filter(|word| {
        let mut parts = word.split('/');
        let is_absolute = parts.next() == Some("");
        let first = parts.next().unwrap_or_default();
        let is_name = |part: &str| part.starts_with(|c: char| c.is_ascii_alphanumeric());
        is_absolute
            && is_name(first)
            && parts.next().is_some_and(is_name)
            && !ROOTS.contains(&first)
    })
}

#[test]
fn the_path_check_sees_paths_and_nothing_else() {
    let seen = |line| absolute_paths(line).count();
    assert_eq!(seen(concat!("cd /ho", "me/me/nyx")), 1);
    assert_eq!(seen(concat!("`/ro", "ot/x.toml`")), 1);
    assert_eq!(
        seen("//! a/b, read/write, /dev/shm/x, 1/2, https://example.org/a/b, /metrics"),
        0
    );
}
