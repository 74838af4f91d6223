//! Parses the `config` of a declared guest: each key has a type, and units are written, never assumed.

use super::{DesiredSetting, ValueForm};
use crate::document::{
    DecodeAborted as End, Diagnostic, Diagnostics, DocumentReader, EventSource, QuoteStyle, Span, quote, unknown_key_fault,
};
use crate::guest::{GuestKind, is_tag};
use crate::normalize::{BootOrder, Field, FieldRole, FieldRule, FieldValue, StartupOrder, ValueShape, WordSet, reaches_host, rule_of};

/// The config of one guest as read so far; its kind may not be known yet.
pub(super) struct ConfigDraft {
    lines: Vec<ConfigLine>,
    /// Keys that no guest has, with their places. Which keys the guest may have instead depends on its kind.
    unknown: Vec<(Box<str>, Span)>,
    form: ValueForm,
}

struct ConfigLine {
    setting: DesiredSetting,
    key: Span,
    value: Span,
}

impl ConfigDraft {
    pub(super) fn with_form(form: ValueForm) -> Self {
        Self { lines: Vec::new(), unknown: Vec::new(), form }
    }

    pub(super) fn form(&self) -> ValueForm {
        self.form
    }

    pub(super) fn clear(&mut self) {
        self.lines.clear();
        self.unknown.clear();
    }
}

pub(super) fn read_config<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>, draft: &mut ConfigDraft) -> Result<(), End> {
    let ConfigDraft { lines, unknown, form } = draft;
    let on_unknown = |_: &mut DocumentReader<'t, S>, key: &str, span| {
        // One more than is shown, so that a truncated list is seen to be one.
        if unknown.len() <= Diagnostics::MAX {
            unknown.push((key.into(), span));
        }
        Ok(())
    };
    reader.read_fields_and_unknown("`config`", &Field::WORDS, on_unknown, |reader, index, key| {
        let Some(field) = Field::ALL.get(index).copied() else { return Ok(()) };
        let mut value = key;
        let wanted = if reader.skip_null()? { Some(None) } else { read_value(reader, field, *form, &mut value)?.map(normalise_empty) };
        if let Some(wanted) = wanted {
            lines.push(ConfigLine { setting: DesiredSetting { field, wanted }, key, value });
        }
        Ok(())
    })?;
    Ok(())
}

/// Reports the keys of a config that no guest has. Only keys that a guest of this kind may have are named instead.
pub(super) fn report_unknown_keys<'t, S: EventSource<'t>>(
    reader: &mut DocumentReader<'t, S>,
    draft: &mut ConfigDraft,
    kind: Option<GuestKind>,
) -> Result<(), End> {
    if draft.unknown.is_empty() {
        return Ok(());
    }
    let accepted = managed_fields(kind);
    draft.unknown.drain(..).try_for_each(|(key, span)| {
        let fault = unknown_key_fault("`config`", &accepted, &key, span);
        reader.report(match forbidden_key_reason(&key) {
            Some(reason) => fault.with_help(reason),
            None => fault,
        })
    })
}

/// Why a key is never accepted: it lets a guest reach its host, or this program must not write it.
fn forbidden_key_reason(key: &str) -> Option<&'static str> {
    match key {
        _ if reaches_host(key) => Some("this key lets a guest reach its host; this program never writes it"),
        "lock" | "protection" | "template" => Some("this program reads it and never writes it"),
        "name" | "hostname" => Some("the name is a key of the guest, not of `config`; it is compared, never changed"),
        _ => None,
    }
}

/// Checks the lines against the table for this kind, and returns them in field order.
pub(super) fn finish_config<'t, S: EventSource<'t>>(
    reader: &mut DocumentReader<'t, S>,
    draft: &mut ConfigDraft,
    kind: GuestKind,
) -> Result<Box<[DesiredSetting]>, End> {
    for line in &draft.lines {
        if let Some(fault) = check_line(line, kind) {
            reader.report(fault)?;
        }
    }
    if let Some(fault) = check_balloon(&draft.lines) {
        reader.report(fault)?;
    }
    let mut settings: Vec<DesiredSetting> = draft.lines.drain(..).map(|line| line.setting).collect();
    settings.sort_unstable_by_key(|setting| setting.field);
    Ok(settings.into())
}

fn check_line(line: &ConfigLine, kind: GuestKind) -> Option<Diagnostic> {
    let field_name = line.setting.field.word();
    let rule = rule_of(kind, line.setting.field).filter(|rule| rule.role == FieldRole::Managed);
    let Some(rule) = rule else {
        return Some(
            Diagnostic::new(line.key, format!("`{field_name}` cannot be managed for {kind} guests")).with_help(managed_fields_help(kind)),
        );
    };
    let Some(value) = &line.setting.wanted else {
        let message = format!("`{field_name}` of {kind} guests cannot be removed, only set");
        return (!rule.can_unset).then(|| Diagnostic::new(line.value, message));
    };
    describe_bounds_fault(rule, value)
        .map(|bounds| Diagnostic::new(line.value, format!("`{field_name}` of {kind} guests must be {bounds}")))
}

fn managed_fields_help(kind: GuestKind) -> String {
    format!("these can be: {}", managed_fields(Some(kind)).join(", "))
}

/// The keys that can be declared for guests of this kind, or for any guest.
fn managed_fields(kind: Option<GuestKind>) -> Vec<&'static str> {
    let is_managed = |rule: &&FieldRule| rule.role == FieldRole::Managed && kind.is_none_or(|kind| rule.kind == kind);
    let mut field_names: Vec<&str> = crate::normalize::TABLE.iter().filter(is_managed).map(|rule| rule.field.word()).collect();
    field_names.sort_unstable();
    field_names.dedup();
    field_names
}

/// The bounds as text, if a value is out of bounds.
fn describe_bounds_fault(rule: &FieldRule, value: &FieldValue) -> Option<String> {
    let show = |number: u32| match value {
        FieldValue::Mib(_) => FieldValue::Mib(number).to_string(),
        FieldValue::Thousandths(_) => FieldValue::Thousandths(number).to_string(),
        _ => number.to_string(),
    };
    let size = match value {
        FieldValue::Count(number) | FieldValue::Mib(number) | FieldValue::Thousandths(number) => *number,
        FieldValue::Text(text) => u32::try_from(text.chars().count()).unwrap_or(u32::MAX),
        FieldValue::Tags(tags) => u32::try_from(tags.iter().count()).unwrap_or(u32::MAX),
        FieldValue::Boot(BootOrder::Devices(devices)) => u32::try_from(devices.len()).unwrap_or(u32::MAX),
        FieldValue::Startup(startup) => startup.parts().iter().filter_map(|(_, part)| *part).max().unwrap_or(0),
        FieldValue::Flag(_) | FieldValue::Boot(BootOrder::Legacy(_)) | FieldValue::Features(_) => return None,
    };
    let unit = match value {
        FieldValue::Text(_) => " characters long",
        FieldValue::Tags(_) | FieldValue::Boot(_) => " entries long",
        _ => "",
    };
    (!(rule.min..=rule.max).contains(&size)).then(|| format!("between {} and {}{unit}", show(rule.min), show(rule.max)))
}

fn check_balloon(lines: &[ConfigLine]) -> Option<Diagnostic> {
    let mib = |field: Field| lines.iter().find(|line| line.setting.field == field);
    let (balloon, memory) = (mib(Field::Balloon)?, mib(Field::Memory)?);
    let (Some(FieldValue::Mib(least)), Some(FieldValue::Mib(most))) = (&balloon.setting.wanted, &memory.setting.wanted) else {
        return None;
    };
    let fault = Diagnostic::new(balloon.value, "`balloon` is the least memory and cannot be more than `memory`");
    (least > most).then(|| fault.with_related(memory.value, "the most it can have"))
}

/// Treats an empty value as absent, so that it has one form.
fn normalise_empty(value: FieldValue) -> Option<FieldValue> {
    match value {
        FieldValue::Text(text) if text.is_empty() => None,
        FieldValue::Tags(tags) if tags.is_empty() => None,
        value => Some(value),
    }
}

fn read_value<'t, S: EventSource<'t>>(
    reader: &mut DocumentReader<'t, S>,
    field: Field,
    form: ValueForm,
    value_span: &mut Span,
) -> Result<Option<FieldValue>, End> {
    let what = field.quoted_name();
    Ok(match field.shape() {
        ValueShape::Flag => reader.read_flag(what)?.map(FieldValue::Flag),
        ValueShape::Count => read_number(reader, what, value_span)?.map(FieldValue::Count),
        ValueShape::Mib if form == ValueForm::Normal => read_number(reader, what, value_span)?.map(FieldValue::Mib),
        ValueShape::Thousandths if form == ValueForm::Normal => read_number(reader, what, value_span)?.map(FieldValue::Thousandths),
        ValueShape::Mib => read_memory(reader, what, value_span)?.map(FieldValue::Mib),
        ValueShape::Thousandths => read_thousandths(reader, what, value_span)?.map(FieldValue::Thousandths),
        ValueShape::Text => read_text(reader, what, value_span)?.map(FieldValue::Text),
        ValueShape::Tags => read_tags(reader)?.map(FieldValue::Tags),
        ValueShape::Startup => read_startup(reader, *value_span)?.map(FieldValue::Startup),
        ValueShape::Boot => read_boot_order(reader)?.map(FieldValue::Boot),
        // No kind can declare it; `check_line` reports that.
        ValueShape::Features => {
            reader.skip_value()?;
            Some(FieldValue::Features(crate::normalize::HotplugFeatures::empty()))
        }
    })
}

fn read_number<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>, what: &str, value_span: &mut Span) -> Result<Option<u32>, End> {
    Ok(reader.read_integer(what, 0, u64::from(u32::MAX))?.map(|(number, span)| {
        *value_span = span;
        u32::try_from(number).unwrap_or(u32::MAX)
    }))
}

fn read_memory<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>, what: &str, value_span: &mut Span) -> Result<Option<u32>, End> {
    let Some((scalar, span)) = reader.read_scalar(what, "an amount of memory such as 512MiB or 8GiB")? else { return Ok(None) };
    *value_span = span;
    match parse_mib(&scalar.text) {
        Some(mib) => Ok(Some(mib)),
        None => {
            let message = format!("{what} must be a whole number with its unit, not {}", quote(&scalar.text));
            reader.report_none(Diagnostic::new(span, message).with_help(memory_help(&scalar.text)))
        }
    }
}

/// How to write the amount that was probably meant. A number without a unit is most likely copied from Proxmox, which counts in MiB.
fn memory_help(written: &str) -> String {
    let digits = written.trim_end_matches(|unit: char| !unit.is_ascii_digit());
    let unit = written.get(digits.len()..).unwrap_or("").trim().to_ascii_uppercase();
    let meant = match unit.as_str() {
        "" | "M" | "MB" | "MIB" => parse_mib(&format!("{digits}MiB")),
        "G" | "GB" | "GIB" => parse_mib(&format!("{digits}GiB")),
        "T" | "TB" | "TIB" => parse_mib(&format!("{digits}TiB")),
        _ => None,
    };
    match meant {
        Some(mib) if unit.is_empty() && mib > 0 && mib.is_multiple_of(1024) => {
            format!("write the unit: Proxmox counts memory in MiB, and {digits} MiB is `{digits}MiB` or `{}`", FieldValue::Mib(mib))
        }
        Some(_) if unit.is_empty() => format!("write the unit: Proxmox counts memory in MiB, and {digits} MiB is `{digits}MiB`"),
        Some(mib) => format!("did you mean `{}`? Units are MiB, GiB and TiB", FieldValue::Mib(mib)),
        None => "write a whole number with MiB, GiB or TiB, such as `512MiB` or `8GiB`".into(),
    }
}

/// `512MiB`, `8GiB`, `1TiB`: digits followed directly by a binary unit.
fn parse_mib(text: &str) -> Option<u32> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits)?;
    let factor = match unit {
        "MiB" => 1,
        "GiB" => 1024,
        "TiB" => 1024 * 1024,
        _ => return None,
    };
    let plain = !number.starts_with('0') || number == "0";
    number.parse::<u32>().ok().filter(|_| plain)?.checked_mul(factor)
}

fn read_thousandths<'t, S: EventSource<'t>>(
    reader: &mut DocumentReader<'t, S>,
    what: &str,
    value_span: &mut Span,
) -> Result<Option<u32>, End> {
    let Some((scalar, span)) = reader.read_scalar(what, "a decimal in quotes, such as \"1.5\"")? else { return Ok(None) };
    *value_span = span;
    let number = if scalar.style == QuoteStyle::Quoted { parse_thousandths(&scalar.text) } else { None };
    match number {
        Some(number) => Ok(Some(number)),
        None => {
            let fault =
                Diagnostic::new(span, format!("{what} must be a decimal in quotes with at most three places, not {}", quote(&scalar.text)));
            reader.report_none(fault.with_help("such as \"1.5\"; the quotes keep it from being rounded as a float"))
        }
    }
}

/// Parses `2`, `1.5` or `0.125` into thousandths.
fn parse_thousandths(text: &str) -> Option<u32> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let fits = digits(whole) && digits(fraction) && fraction.len() <= 3 && (whole == "0" || !whole.starts_with('0'));
    let thousandths: u32 = format!("{fraction:0<3}").parse().ok().filter(|_| fits)?;
    whole.parse::<u32>().ok()?.checked_mul(1000)?.checked_add(thousandths)
}

/// Proxmox strips whitespace at the end of a description; other control characters would not survive the request.
fn read_text<'t, S: EventSource<'t>>(
    reader: &mut DocumentReader<'t, S>,
    what: &str,
    value_span: &mut Span,
) -> Result<Option<Box<str>>, End> {
    let Some((text, span)) = reader.read_text(what)? else { return Ok(None) };
    *value_span = span;
    let control = text.chars().find(|character| character.is_control() && !matches!(character, '\n' | '\t'));
    if let Some(control) = control {
        let fault = Diagnostic::new(span, format!("{what} has the control character {}", control.escape_debug()));
        return reader.report_none(fault.with_help("only line breaks and tabs are accepted"));
    }
    Ok(Some(text.trim_end().into()))
}

/// Entries beyond this number are ignored: the limit of the field, which is lower, rejects the list anyway.
const ENTRIES_MAX: usize = 256;

fn read_tags<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<WordSet>, End> {
    let mut tags: Vec<Box<str>> = Vec::new();
    let list = reader.read_items("`tags`", |reader| {
        let Some((tag, span)) = reader.read_text("a tag")? else { return Ok(()) };
        if tags.len() > ENTRIES_MAX {
            return Ok(());
        }
        if !is_tag(&tag) {
            let fault = Diagnostic::new(span, format!("{} is not a tag", quote(&tag)));
            return reader.report(fault.with_help("tags are letters, digits, `_`, `-`, `+` and `.`, at most 124 of them"));
        }
        if tags.iter().any(|own| **own == *tag) {
            return reader.report(Diagnostic::new(span, format!("the tag `{tag}` is given twice")));
        }
        tags.push(tag.into());
        Ok(())
    })?;
    Ok(list.map(|_| WordSet::new(tags)))
}

fn read_boot_order<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<BootOrder>, End> {
    let mut devices: Vec<Box<str>> = Vec::new();
    let list = reader.read_items("`boot`", |reader| {
        let Some((device, span)) = reader.read_text("a device in `boot`")? else { return Ok(()) };
        if devices.len() > ENTRIES_MAX {
            return Ok(());
        }
        if !is_boot_device(&device) {
            let fault = Diagnostic::new(span, format!("{} is not a device to boot from", quote(&device)));
            return reader.report(fault.with_help("such as scsi0, virtio0, sata0, ide2 or net0"));
        }
        if devices.iter().any(|own| **own == *device) {
            return reader.report(Diagnostic::new(span, format!("the device `{device}` is given twice")));
        }
        devices.push(device.into());
        Ok(())
    })?;
    Ok(list.map(|_| BootOrder::Devices(devices.into())))
}

/// Whether it is a disk or a network card. Passed-through devices (`usb`, `hostpci`) reach the host and are not accepted.
fn is_boot_device(text: &str) -> bool {
    let number = ["ide", "sata", "scsi", "virtio", "net"].iter().find_map(|bus| text.strip_prefix(bus));
    number.is_some_and(|number| (1..=2).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit()))
}

const STARTUP_KEYS: [&str; 3] = ["order", "up", "down"];

fn read_startup<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>, value_span: Span) -> Result<Option<StartupOrder>, End> {
    let mut startup = StartupOrder::default();
    let seen = reader.read_fields("`startup`", &STARTUP_KEYS, |reader, key, _| {
        let number = reader.read_integer("a part of `startup`", 0, 1_000_000)?.and_then(|(number, _)| u32::try_from(number).ok());
        match key {
            0 => startup.order = number,
            1 => startup.up = number,
            _ => startup.down = number,
        }
        Ok(())
    })?;
    let Some(seen) = seen else { return Ok(None) };
    if (0..STARTUP_KEYS.len()).all(|key| seen.key_span(key).is_none()) {
        return reader.report_none(
            Diagnostic::new(value_span, "`startup` is empty").with_help("give `order`, `up` or `down`, or `startup: null` to remove it"),
        );
    }
    Ok(Some(startup))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_needs_a_binary_unit() {
        for bad in ["", "8", "8GB", "8G", "8 GiB", "08GiB", "8gib", "GiB", "-1GiB", "1.5GiB", "99999999999MiB", "4194304TiB", "8GiB "] {
            assert_eq!(parse_mib(bad), None, "{bad:?}");
        }
        assert_eq!(
            (parse_mib("512MiB"), parse_mib("8GiB"), parse_mib("1TiB"), parse_mib("0MiB")),
            (Some(512), Some(8192), Some(1 << 20), Some(0))
        );
    }

    #[test]
    fn memory_without_a_unit_is_taken_for_mib_in_the_help() {
        for (written, expected) in [
            ("8192", "write the unit: Proxmox counts memory in MiB, and 8192 MiB is `8192MiB` or `8GiB`"),
            ("1500", "write the unit: Proxmox counts memory in MiB, and 1500 MiB is `1500MiB`"),
            ("8G", "did you mean `8GiB`? Units are MiB, GiB and TiB"),
            ("8 GiB", "did you mean `8GiB`? Units are MiB, GiB and TiB"),
            ("512M", "did you mean `512MiB`? Units are MiB, GiB and TiB"),
            ("1.5GiB", "write a whole number with MiB, GiB or TiB, such as `512MiB` or `8GiB`"),
            ("lots", "write a whole number with MiB, GiB or TiB, such as `512MiB` or `8GiB`"),
        ] {
            assert_eq!(memory_help(written), expected, "{written}");
        }
    }

    #[test]
    fn help_names_only_keys_that_the_guest_may_have() {
        let help = |kind: &str, config: &str| {
            let text = format!("version: 1\nenvironment: lab\nguests: [{{ vmid: 100, {kind}name: a, config: {{ {config} }} }}]");
            let faults = crate::desired::parse(text.as_bytes(), crate::document::Notation::Yaml).expect_err("a fault");
            faults.list().iter().find_map(|fault| fault.help.clone().filter(|_| fault.message.contains("unknown key"))).unwrap_or_default()
        };
        let words = |help: &str| help.trim_start_matches("known keys: ").split(", ").map(str::to_owned).collect::<Vec<String>>();
        for (kind, own) in [("kind: qemu, ", GuestKind::Qemu), ("kind: lxc, ", GuestKind::Lxc)] {
            let listed = words(&help(kind, "firewall: true"));
            assert!(!listed.is_empty());
            for word in listed {
                let field = Field::ALL.into_iter().find(|field| field.word() == word).unwrap_or_else(|| panic!("{word} is no field"));
                let is_managed = rule_of(own, field).is_some_and(|rule| rule.role == FieldRole::Managed);
                assert!(is_managed, "{word} is not accepted for {own} guests");
            }
        }
        assert_ne!(help("kind: lxc, ", "ballon: 1"), "did you mean `balloon`?", "containers have no balloon");
        assert_eq!(help("kind: qemu, ", "ballon: 1"), "did you mean `balloon`?");
        assert!(!words(&help("", "firewall: true")).contains(&"hotplug".to_owned()), "no kind has it");
        assert!(help("kind: qemu, ", "hostpci0: x").contains("reach its host"));
    }

    #[test]
    fn decimals_have_at_most_three_places() {
        for bad in ["", ".5", "1.", "1.0001", "-1", "01", "1e3", "1,5", "99999999"] {
            assert_eq!(parse_thousandths(bad), None, "{bad:?}");
        }
        assert_eq!(
            (parse_thousandths("1.5"), parse_thousandths("2"), parse_thousandths("0.125"), parse_thousandths("0")),
            (Some(1500), Some(2000), Some(125), Some(0))
        );
    }

    #[test]
    fn rejects_passed_through_devices_as_boot_devices() {
        for bad in ["usb0", "hostpci0", "scsi", "scsi100", "SCSI0", "/dev/sda", "efidisk0"] {
            assert!(!is_boot_device(bad), "{bad:?}");
        }
        assert!(is_boot_device("scsi30") && is_boot_device("net0"));
    }
}
