//! Generated pages, and the check that the committed ones are current.
//!
//! A page is a path and the function that writes its text. Must not contain the text itself.

mod reference;

use std::fs;
use std::path::Path;

use crate::shell::{TaskError, TaskResult};

/// A generated page: its path in the repository, and the function that writes it.
struct GeneratedPage {
    path: &'static str,
    text: fn() -> Result<String, TaskError>,
}

/// All generated pages of this repository.
fn generated_pages() -> Vec<GeneratedPage> {
    vec![
        // First, because the program that produces the other pages embeds it.
        GeneratedPage { path: "crates/converger-core/contract/tests.txt", text: reference::contract_tests_page },
        GeneratedPage { path: "docs/reference/cli.md", text: reference::cli_page },
        GeneratedPage { path: "docs/reference/refusals.md", text: reference::refusals_page },
        GeneratedPage { path: "docs/reference/fields.md", text: reference::fields_page },
        GeneratedPage { path: "docs/reference/schemas/desired.schema.json", text: || reference::schema_page("desired") },
        GeneratedPage { path: "docs/reference/schemas/observation.schema.json", text: || reference::schema_page("observation") },
        GeneratedPage { path: "docs/reference/schemas/plan.schema.json", text: || reference::schema_page("plan") },
        GeneratedPage { path: "docs/reference/schemas/result.schema.json", text: || reference::schema_page("result") },
        GeneratedPage { path: "docs/reference/schemas/history.schema.json", text: || reference::schema_page("history") },
        GeneratedPage { path: "docs/reference/schemas/said.schema.json", text: || reference::schema_page("said") },
        GeneratedPage { path: "docs/reference/schemas/doctor.schema.json", text: || reference::schema_page("doctor") },
        GeneratedPage { path: "docs/reference/schemas/pin.schema.json", text: || reference::schema_page("pin") },
        GeneratedPage { path: "docs/reference/schemas/init.schema.json", text: || reference::schema_page("init") },
        GeneratedPage { path: "docs/reference/schemas/guests.schema.json", text: || reference::schema_page("guests") },
        GeneratedPage { path: "docs/reference/schemas/entry.schema.json", text: || reference::schema_page("entry") },
        GeneratedPage { path: "docs/reference/schemas/verified.schema.json", text: || reference::schema_page("verified") },
        GeneratedPage { path: "docs/reference/schemas/reproduced.schema.json", text: || reference::schema_page("reproduced") },
        GeneratedPage { path: "docs/reference/schemas/explained.schema.json", text: || reference::schema_page("explained") },
        GeneratedPage { path: "docs/reference/schemas/backtest.schema.json", text: || reference::schema_page("backtest") },
        GeneratedPage { path: "docs/reference/schemas/pruned.schema.json", text: || reference::schema_page("pruned") },
        GeneratedPage { path: "docs/reference/schemas/diff.schema.json", text: || reference::schema_page("diff") },
    ]
}

/// Writes all pages.
pub(crate) fn write_pages() -> TaskResult {
    generated_pages().iter().try_for_each(|page| write_page(Path::new("."), page))
}

/// Compares all pages with the committed files; one error names all differences.
pub(crate) fn check_docs() -> TaskResult {
    check_pages(Path::new("."), &generated_pages())
}

fn write_page(root: &Path, page: &GeneratedPage) -> TaskResult {
    let path = root.join(page.path);
    let text = (page.text)()?;
    let written = fs::create_dir_all(path.parent().unwrap_or(root)).and_then(|()| fs::write(&path, text));
    written.map_err(|error| TaskError::new(format!("cannot write `{}`: {error}", page.path)))
}

fn check_pages(root: &Path, pages: &[GeneratedPage]) -> TaskResult {
    let mut stale = Vec::new();
    for page in pages {
        let committed = fs::read_to_string(root.join(page.path)).ok();
        stale.extend(page_difference(page.path, committed.as_deref(), &(page.text)()?));
    }
    if stale.is_empty() {
        return Ok(());
    }
    let stale = stale.join(", ");
    Err(TaskError::new(format!("{stale}; run `cargo xtask gen-docs`, read the change and commit it")))
}

/// How the committed text differs, if it does.
fn page_difference(path: &str, committed: Option<&str>, generated: &str) -> Option<String> {
    match committed {
        None => Some(format!("`{path}` is missing")),
        Some(committed) if committed == generated => None,
        Some(committed) => Some(format!("`{path}` is stale from line {}", count_equal_lines(committed, generated) + 1)),
    }
}

fn count_equal_lines(left: &str, right: &str) -> usize {
    left.lines().zip(right.lines()).take_while(|(left, right)| left == right).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_stale_pages_are_distinguished() {
        assert_eq!(page_difference("a.md", None, "one\n"), Some("`a.md` is missing".to_owned()));
        let stale = page_difference("a.md", Some("one\ntwo\n"), "one\n2\n");
        assert_eq!(stale, Some("`a.md` is stale from line 2".to_owned()));
        assert!(page_difference("a.md", Some("one\ntwo"), "one\ntwo\n").is_some(), "the last newline counts");
    }

    #[test]
    fn written_pages_are_current_until_edited() {
        let root = std::env::temp_dir().join(format!("xtask-docs-{}", std::process::id()));
        let page = || GeneratedPage { path: "reference/codes.md", text: || Ok("# Codes\n".to_owned()) };
        let missing = check_pages(&root, &[page()]);
        let written = write_page(&root, &page()).and_then(|()| check_pages(&root, &[page()]));
        fs::write(root.join("reference/codes.md"), "# Cods\n").unwrap();
        let edited = check_pages(&root, &[page()]);
        fs::remove_dir_all(&root).unwrap();
        assert!(missing.is_err() && edited.is_err());
        assert_eq!(written, Ok(()));
    }
}
