//! Named formats and patterns of the API, each as a small function.
//!
//! There is no regular expression engine; the few patterns that matter are written out. An unknown
//! format accepts everything.

/// Checks `text` against a named format. Like in Proxmox, the error ends with a line end.
pub(super) fn check_format(name: &str, text: &str) -> Result<(), String> {
    match name.strip_suffix("-list") {
        Some(item) if name != "storage-pair-list" && name != "bridge-pair-list" => check_list(item, text),
        _ => check_single(name, text),
    }
}

/// The items of a list, separated by commas, semicolons, whitespace or NUL bytes.
pub(crate) fn split_list(text: &str) -> impl Iterator<Item = &str> {
    text.split([',', ';', ' ', '\t', '\n', '\0']).filter(|item| !item.is_empty())
}

fn check_list(item: &str, text: &str) -> Result<(), String> {
    split_list(text).try_for_each(|part| check_single(item, part))
}

fn check_single(name: &str, text: &str) -> Result<(), String> {
    let wrong = match name {
        "pve-vmid" => (!is_vmid(text)).then(|| "value does not look like a valid VM ID".to_owned()),
        "pve-node" => (!is_label(text)).then(|| "value does not look like a valid node name".to_owned()),
        "pve-configid" | "configid" => (!matches_pattern("configid", text)).then(|| format!("invalid configuration ID '{text}'")),
        "pve-storage-id" => (!is_storage(text)).then(|| format!("storage ID '{text}' contains illegal characters")),
        "dns-name" => (!text.split('.').all(is_label)).then(|| "value does not look like a valid DNS name".to_owned()),
        "pve-tag" => (!is_tag(text)).then(|| "invalid characters in tag".to_owned()),
        "mac-addr" => (!is_mac(text)).then(|| "value does not look like a valid unicast MAC address".to_owned()),
        "urlencoded" => (!is_urlencoded(text)).then(|| format!("invalid urlencoded string: {text}")),
        "disk-size" => (!matches_pattern("size", text)).then(|| format!("value does not look like a valid disk size: {text}")),
        "pve-userid" => (!is_user(text)).then(|| "value does not look like a valid user name".to_owned()),
        "pve-poolid" => (!is_pool(text)).then(|| format!("pool name '{text}' contains invalid characters")),
        "IPorCIDR" => (!is_network(text)).then(|| NOT_A_NETWORK_TEXT.to_owned()),
        "IPorCIDRorAlias" => (!is_network(text) && !is_alias(text)).then(|| NOT_A_NETWORK_TEXT.to_owned()),
        "pve-bridge-id" => (!matches_pattern("ifname", text)).then(|| format!("invalid bridge ID '{text}'")),
        "pve-hotplug-features" => (!is_hotplug(text)).then(|| "unable to parse hotplug option".to_owned()),
        "pve-volume-id" => (!is_volume(text)).then(|| format!("unable to parse volume ID '{text}'")),
        "pve-volume-id-or-absolute-path" => path_or_volume_error(text),
        "pve-volume-id-or-qm-path" if text == "none" || text == "cdrom" => None,
        "pve-volume-id-or-qm-path" => path_or_volume_error(text),
        _ => None,
    };
    wrong.map_or(Ok(()), |error| Err(format!("{error}\n")))
}

/// Whether the whole text matches a pattern of the schema.
pub(super) fn matches_pattern(pattern: &str, text: &str) -> bool {
    match pattern {
        "configid" => is_identifier(text, |character| character.is_ascii_alphanumeric() || "-_".contains(character)),
        "tokenid" => is_identifier(text, |character| character.is_ascii_alphanumeric() || ".-_".contains(character)),
        "ifname" => !text.is_empty() && text.chars().all(|character| character.is_ascii_alphanumeric() || "-_.".contains(character)),
        "nospace" => !text.is_empty() && !text.contains(char::is_whitespace),
        "size" => is_size(text),
        "growsize" => is_size(text.strip_prefix('+').unwrap_or(text)),
        "drive" => super::split_number(text).is_some_and(|(stem, _)| ["ide", "sata", "scsi", "virtio"].contains(&stem)),
        "serial" => text == "socket" || text.strip_prefix("/dev/").is_some_and(|rest| !rest.is_empty() && !rest.contains(',')),
        "genid" => text == "0" || text == "1" || is_uuid(text),
        _ => true,
    }
}

/// A letter followed by at least one more character.
fn is_identifier(text: &str, follows: fn(char) -> bool) -> bool {
    let mut characters = text.chars();
    let first = characters.next().is_some_and(|character| character.is_ascii_alphabetic());
    first && text.len() > 1 && characters.all(follows)
}

const NOT_A_NETWORK_TEXT: &str = "value does not look like a valid IP address or CIDR network";

/// An IP address, optionally with a prefix length.
fn is_network(text: &str) -> bool {
    let (address, length) = text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
    let most = match address.parse::<std::net::IpAddr>() {
        Ok(std::net::IpAddr::V4(_)) => 32,
        Ok(std::net::IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    length.is_none_or(|length| length.parse::<u8>().is_ok_and(|length| length <= most))
}

/// The name of an alias, optionally with its scope.
fn is_alias(text: &str) -> bool {
    let name = text.strip_prefix("dc/").or_else(|| text.strip_prefix("guest/")).unwrap_or(text);
    matches_pattern("configid", name)
}

fn is_vmid(text: &str) -> bool {
    let digits = text.chars().all(|character| character.is_ascii_digit());
    digits && !text.starts_with('0') && (3..=9).contains(&text.len())
}

fn is_label(text: &str) -> bool {
    let inside = text.chars().all(|character| character.is_ascii_alphanumeric() || character == '-');
    !text.is_empty() && inside && !text.starts_with('-') && !text.ends_with('-')
}

fn is_storage(text: &str) -> bool {
    let follows = text.chars().all(|character| character.is_ascii_alphanumeric() || "-_.".contains(character));
    let ends = text.ends_with(|character: char| character.is_ascii_alphanumeric());
    text.len() > 1 && text.starts_with(|character: char| character.is_ascii_alphabetic()) && follows && ends
}

fn is_tag(text: &str) -> bool {
    let first = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let follows = |character: char| first(character) || "-+.".contains(character);
    text.starts_with(first) && text.chars().all(follows)
}

fn is_mac(text: &str) -> bool {
    let bytes: Vec<Option<u8>> = text.split(':').map(parse_hex_byte).collect();
    // The lowest bit of the first byte marks a multicast address.
    let unicast = bytes.first().is_some_and(|first| first.is_some_and(|byte| byte & 1 == 0));
    bytes.len() == 6 && unicast && bytes.iter().all(Option::is_some)
}

fn parse_hex_byte(text: &str) -> Option<u8> {
    if text.len() == 2 { u8::from_str_radix(text, 16).ok() } else { None }
}

fn is_urlencoded(text: &str) -> bool {
    text.chars().all(|character| character.is_ascii_alphanumeric() || "-%_.!~*'()".contains(character))
}

fn is_size(text: &str) -> bool {
    let digits = text.strip_suffix(['K', 'M', 'G', 'T']).unwrap_or(text);
    let numeric = |part: &str| !part.is_empty() && part.chars().all(|character| character.is_ascii_digit());
    digits.split_once('.').map_or(numeric(digits), |(whole, part)| numeric(whole) && numeric(part))
}

fn is_user(text: &str) -> bool {
    let Some((name, realm)) = text.rsplit_once('@') else { return false };
    let named = !name.is_empty() && !name.contains([':', '/']) && !name.contains(char::is_whitespace);
    named && matches_pattern("tokenid", realm)
}

fn is_pool(text: &str) -> bool {
    let parts: Vec<&str> = text.split('/').collect();
    let is_valid =
        |part: &&str| !part.is_empty() && part.chars().all(|character| character.is_ascii_alphanumeric() || ".-_".contains(character));
    parts.len() <= 3 && parts.iter().all(is_valid)
}

fn is_hotplug(text: &str) -> bool {
    let known = ["network", "disk", "cpu", "memory", "usb", "cloudinit"];
    text == "0" || text == "1" || split_list(text).all(|item| known.contains(&item))
}

fn is_volume(text: &str) -> bool {
    text.split_once(':').is_some_and(|(storage, rest)| is_storage(storage) && !rest.is_empty())
}

fn path_or_volume_error(text: &str) -> Option<String> {
    let is_valid = text.starts_with('/') || is_volume(text);
    (!is_valid).then(|| format!("unable to parse volume ID '{text}'"))
}

fn is_uuid(text: &str) -> bool {
    let lengths: Vec<usize> = text.split('-').map(str::len).collect();
    lengths == [8, 4, 4, 4, 12] && text.chars().all(|character| character.is_ascii_hexdigit() || character == '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_all(format: &str, good: &[&str], bad: &[&str]) {
        for text in good {
            assert_eq!(check_format(format, text), Ok(()), "{format}: {text}");
        }
        for text in bad {
            assert!(check_format(format, text).is_err_and(|error| error.ends_with('\n')), "{format}: {text}");
        }
    }

    #[test]
    fn formats_refuse_what_proxmox_refuses() {
        check_all("pve-vmid", &["100", "999999999"], &["5", "0100", "1000000000", "abc", ""]);
        check_all("dns-name", &["web-1", "a.b"], &["under_score", "", "-a", "a\nb"]);
        check_all("pve-tag-list", &["Zed, alpha;beta", "", "_x"], &["-bad", "a;-b"]);
        check_all("mac-addr", &["aa:bb:cc:dd:ee:ff"], &["01:bb:cc:dd:ee:ff", "aa:bb:cc", "aa:bb:cc:dd:ee:fg"]);
        check_all("urlencoded", &["a%20b"], &["a b@c"]);
        check_all("disk-size", &["32G", "1.5G", "100"], &["G", "1.G", "1X", "-1"]);
        check_all("pve-configid", &["s1", "abc"], &["x", "1bad", "a b"]);
        check_all("pve-userid", &["root@pam"], &["root", "@pam", "a b@pam"]);
    }

    #[test]
    fn patterns_match_as_a_whole() {
        assert!(matches_pattern("growsize", "+1G") && matches_pattern("growsize", "32G"));
        for wrong in ["+banana", "++8G", "+", "1GG"] {
            assert!(!matches_pattern("growsize", wrong), "{wrong}");
        }
        assert!(matches_pattern("genid", "1") && !matches_pattern("genid", "2"));
    }
}
