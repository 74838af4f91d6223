//! The list of commands, extracted from the codec's source, so that it cannot be incomplete.

use std::collections::BTreeSet;

use converger_adapters::proxmox::codec::{ProxmoxCommand, ProxmoxRead, ProxmoxWrite};

const SOURCE: &str = include_str!("../../src/proxmox/codec/command.rs");

/// The variants of `pub enum <name>`: the words at the beginning of lines at the first brace level.
pub(crate) fn command_variants(name: &str) -> BTreeSet<&'static str> {
    enum_variants(SOURCE, name)
}

/// Like [`command_variants`], for an enum in another source.
pub(crate) fn enum_variants(source: &'static str, name: &str) -> BTreeSet<&'static str> {
    let head = format!("pub enum {name} {{\n");
    let (_, body) = source.split_once(&head).unwrap_or_else(|| panic!("no enum {name}"));
    let (body, _) = body.split_once("\n}\n").unwrap_or_else(|| panic!("{name} has no end"));
    let own =
        body.lines().filter_map(|line| line.strip_prefix("    ")).filter(|line| line.starts_with(|own: char| own.is_ascii_uppercase()));
    own.map(|line| line.split(|own: char| !own.is_ascii_alphanumeric()).next().unwrap_or_default()).collect()
}

/// The variant of a command, from its debug output.
fn variant_name(shown: &str) -> String {
    shown.split(|own: char| !own.is_ascii_alphanumeric()).next().unwrap_or_default().to_owned()
}

/// The variants of reads and writes that occur in none of these commands.
pub(crate) fn unused_variants<'c>(commands: impl IntoIterator<Item = &'c ProxmoxCommand>) -> Vec<&'static str> {
    let own = |read: &ProxmoxRead| variant_name(&format!("{read:?}"));
    let other = |write: &ProxmoxWrite| variant_name(&format!("{write:?}"));
    let used: BTreeSet<String> = commands
        .into_iter()
        .map(|command| match command {
            ProxmoxCommand::Read(read) => own(read),
            ProxmoxCommand::Write(write) => other(write),
        })
        .collect();
    command_variants("ProxmoxRead").into_iter().chain(command_variants("ProxmoxWrite")).filter(|name| !used.contains(*name)).collect()
}
