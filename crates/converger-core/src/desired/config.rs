//! The `config` of a declared guest: each key has a typed shape, and its unit is written, never assumed.

use super::{Form, Setting};
use crate::document::{Diagnostic, Reader, Source, Span, Stop as End, Style, quoted};
use crate::guest::{Kind, is_tag};
use crate::normalize::{Boot, Field, Role, Rule, Shape, Startup, Value, Words, reaches_host, rule_of};

/// What was read of one guest's config; its kind may not be known yet.
pub(super) struct Draft(Vec<Line>, Form);

struct Line {
    setting: Setting,
    key: Span,
    value: Span,
}

impl Draft {
    pub(super) fn of(form: Form) -> Self {
        Self(Vec::new(), form)
    }

    pub(super) fn form(&self) -> Form {
        self.1
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

pub(super) fn read<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, draft: &mut Draft) -> Result<(), End> {
    reader.fields_but("`config`", &Field::WORDS, never, |reader, index, key| {
        let Some(field) = Field::ALL.get(index).copied() else { return Ok(()) };
        let mut value = key;
        let wanted = if reader.null()? { Some(None) } else { value_of(reader, field, draft.1, &mut value)?.map(normal) };
        if let Some(wanted) = wanted {
            draft.0.push(Line { setting: Setting { field, wanted }, key, value });
        }
        Ok(())
    })?;
    Ok(())
}

/// Keys that let a guest reach its host, or that are not this program's to write: why they are never accepted.
fn never(key: &str) -> Option<&'static str> {
    match key {
        _ if reaches_host(key) => Some("this key lets a guest reach its host; this program never writes it"),
        "lock" | "protection" | "template" => Some("this program reads it and never writes it"),
        "name" | "hostname" => Some("the name stands beside `config`, and is compared and never changed"),
        _ => None,
    }
}

/// Checks the lines against the table for this kind, and takes them out in the order of the fields.
pub(super) fn finish<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, draft: &mut Draft, kind: Kind) -> Result<Box<[Setting]>, End> {
    for line in &draft.0 {
        if let Some(fault) = fault_of(line, kind) {
            reader.report(fault)?;
        }
    }
    if let Some(fault) = balloon_above_memory(&draft.0) {
        reader.report(fault)?;
    }
    let mut settings: Vec<Setting> = draft.0.drain(..).map(|line| line.setting).collect();
    settings.sort_unstable_by_key(|setting| setting.field);
    Ok(settings.into())
}

fn fault_of(line: &Line, kind: Kind) -> Option<Diagnostic> {
    let word = line.setting.field.word();
    let rule = rule_of(kind, line.setting.field).filter(|rule| rule.role == Role::Managed);
    let Some(rule) = rule else {
        return Some(Diagnostic::new(line.key, format!("`{word}` cannot be managed for {kind} guests")).help(manageable(kind)));
    };
    let Some(value) = &line.setting.wanted else {
        let message = format!("`{word}` of {kind} guests cannot be removed, only set");
        return (!rule.can_unset).then(|| Diagnostic::new(line.value, message));
    };
    out_of_bounds(rule, value).map(|bounds| Diagnostic::new(line.value, format!("`{word}` of {kind} guests must be {bounds}")))
}

fn manageable(kind: Kind) -> String {
    let managed = crate::normalize::TABLE.iter().filter(|rule| rule.kind == kind && rule.role == Role::Managed);
    let words: Vec<&str> = managed.map(|rule| rule.field.word()).collect();
    format!("these can be: {}", words.join(", "))
}

/// The bounds in words, where a value is outside of them.
fn out_of_bounds(rule: &Rule, value: &Value) -> Option<String> {
    let show = |number: u32| match value {
        Value::Mib(_) => Value::Mib(number).to_string(),
        Value::Thousandths(_) => Value::Thousandths(number).to_string(),
        _ => number.to_string(),
    };
    let size = match value {
        Value::Count(number) | Value::Mib(number) | Value::Thousandths(number) => *number,
        Value::Text(text) => u32::try_from(text.chars().count()).unwrap_or(u32::MAX),
        Value::Tags(tags) => u32::try_from(tags.iter().count()).unwrap_or(u32::MAX),
        Value::Boot(Boot::Devices(devices)) => u32::try_from(devices.len()).unwrap_or(u32::MAX),
        Value::Startup(startup) => startup.parts().iter().filter_map(|(_, part)| *part).max().unwrap_or(0),
        Value::Flag(_) | Value::Boot(Boot::Legacy(_)) | Value::Features(_) => return None,
    };
    let unit = match value {
        Value::Text(_) => " characters long",
        Value::Tags(_) | Value::Boot(_) => " entries long",
        _ => "",
    };
    (!(rule.min..=rule.max).contains(&size)).then(|| format!("between {} and {}{unit}", show(rule.min), show(rule.max)))
}

fn balloon_above_memory(lines: &[Line]) -> Option<Diagnostic> {
    let mib = |field: Field| lines.iter().find(|line| line.setting.field == field);
    let (balloon, memory) = (mib(Field::Balloon)?, mib(Field::Memory)?);
    let (Some(Value::Mib(least)), Some(Value::Mib(most))) = (&balloon.setting.wanted, &memory.setting.wanted) else { return None };
    let fault = Diagnostic::new(balloon.value, "`balloon` is the least memory and cannot be more than `memory`");
    (least > most).then(|| fault.related(memory.value, "the most it can have"))
}

/// Emptiness is absence, so that it has one form.
fn normal(value: Value) -> Option<Value> {
    match value {
        Value::Text(text) if text.is_empty() => None,
        Value::Tags(tags) if tags.is_empty() => None,
        value => Some(value),
    }
}

fn value_of<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, field: Field, form: Form, place: &mut Span) -> Result<Option<Value>, End> {
    let what = field.quoted();
    Ok(match field.shape() {
        Shape::Flag => reader.flag(what)?.map(Value::Flag),
        Shape::Count => number(reader, what, place)?.map(Value::Count),
        Shape::Mib if form == Form::Normal => number(reader, what, place)?.map(Value::Mib),
        Shape::Thousandths if form == Form::Normal => number(reader, what, place)?.map(Value::Thousandths),
        Shape::Mib => memory(reader, what, place)?.map(Value::Mib),
        Shape::Thousandths => thousandths(reader, what, place)?.map(Value::Thousandths),
        Shape::Text => text(reader, what, place)?.map(Value::Text),
        Shape::Tags => tags(reader)?.map(Value::Tags),
        Shape::Startup => startup(reader, *place)?.map(Value::Startup),
        Shape::Boot => boot(reader)?.map(Value::Boot),
        // Not declarable for any kind: the fault about that comes from the table.
        Shape::Features => {
            reader.skip_value()?;
            Some(Value::Features(crate::normalize::Features::none()))
        }
    })
}

fn number<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, what: &str, place: &mut Span) -> Result<Option<u32>, End> {
    Ok(reader.integer(what, 0, u64::from(u32::MAX))?.map(|(number, span)| {
        *place = span;
        u32::try_from(number).unwrap_or(u32::MAX)
    }))
}

fn memory<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, what: &str, place: &mut Span) -> Result<Option<u32>, End> {
    let Some((scalar, span)) = reader.scalar(what, "an amount of memory such as 512MiB or 8GiB")? else { return Ok(None) };
    *place = span;
    match mib(&scalar.text) {
        Some(mib) => Ok(Some(mib)),
        None => {
            let help = match scalar.text.trim_end_matches(|unit: char| !unit.is_ascii_digit()) {
                digits if digits.is_empty() || digits.contains(|character: char| !character.is_ascii_digit()) => {
                    "write a whole number with MiB, GiB or TiB, such as 512MiB or 8GiB".into()
                }
                digits => format!("write the unit as MiB, GiB or TiB, such as {digits}MiB or {digits}GiB"),
            };
            reader.refuse(
                Diagnostic::new(span, format!("{what} must be a whole number with its unit, not {}", quoted(&scalar.text))).help(help),
            )
        }
    }
}

/// `512MiB`, `8GiB`, `1TiB`: digits and a binary unit, nothing between.
fn mib(text: &str) -> Option<u32> {
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

fn thousandths<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, what: &str, place: &mut Span) -> Result<Option<u32>, End> {
    let Some((scalar, span)) = reader.scalar(what, "a decimal in quotes, such as \"1.5\"")? else { return Ok(None) };
    *place = span;
    let number = if scalar.style == Style::Quoted { decimal(&scalar.text) } else { None };
    match number {
        Some(number) => Ok(Some(number)),
        None => {
            let fault = Diagnostic::new(
                span,
                format!("{what} must be a decimal in quotes with at most three places, not {}", quoted(&scalar.text)),
            );
            reader.refuse(fault.help("such as \"1.5\"; the quotes keep it from being rounded as a float"))
        }
    }
}

/// `2`, `1.5`, `0.125` in thousandths.
fn decimal(text: &str) -> Option<u32> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let fits = digits(whole) && digits(fraction) && fraction.len() <= 3 && (whole == "0" || !whole.starts_with('0'));
    let thousandths: u32 = format!("{fraction:0<3}").parse().ok().filter(|_| fits)?;
    whole.parse::<u32>().ok()?.checked_mul(1000)?.checked_add(thousandths)
}

/// Proxmox keeps no blanks at the end of a description; other control characters would not survive the way there.
fn text<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, what: &str, place: &mut Span) -> Result<Option<Box<str>>, End> {
    let Some((text, span)) = reader.text(what)? else { return Ok(None) };
    *place = span;
    let control = text.chars().find(|character| character.is_control() && !matches!(character, '\n' | '\t'));
    if let Some(control) = control {
        let fault = Diagnostic::new(span, format!("{what} has the control character {}", control.escape_debug()));
        return reader.refuse(fault.help("only line breaks and tabs are accepted"));
    }
    Ok(Some(text.trim_end().into()))
}

/// Beyond this a list is not looked at: the bound of its field, which is smaller, refuses it.
const ENTRIES_MAX: usize = 256;

fn tags<'t, S: Source<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<Words>, End> {
    let mut tags: Vec<Box<str>> = Vec::new();
    let list = reader.items("`tags`", |reader| {
        let Some((tag, span)) = reader.text("a tag")? else { return Ok(()) };
        if tags.len() > ENTRIES_MAX {
            return Ok(());
        }
        if !is_tag(&tag) {
            let fault = Diagnostic::new(span, format!("{} is not a tag", quoted(&tag)));
            return reader.report(fault.help("tags are letters, digits, `_`, `-`, `+` and `.`, at most 124 of them"));
        }
        if tags.iter().any(|own| **own == *tag) {
            return reader.report(Diagnostic::new(span, format!("the tag `{tag}` is given twice")));
        }
        tags.push(tag.into());
        Ok(())
    })?;
    Ok(list.map(|_| Words::new(tags)))
}

fn boot<'t, S: Source<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<Boot>, End> {
    let mut devices: Vec<Box<str>> = Vec::new();
    let list = reader.items("`boot`", |reader| {
        let Some((device, span)) = reader.text("a device in `boot`")? else { return Ok(()) };
        if devices.len() > ENTRIES_MAX {
            return Ok(());
        }
        if !is_boot_device(&device) {
            let fault = Diagnostic::new(span, format!("{} is not a device to boot from", quoted(&device)));
            return reader.report(fault.help("such as scsi0, virtio0, sata0, ide2 or net0"));
        }
        if devices.iter().any(|own| **own == *device) {
            return reader.report(Diagnostic::new(span, format!("the device `{device}` is given twice")));
        }
        devices.push(device.into());
        Ok(())
    })?;
    Ok(list.map(|_| Boot::Devices(devices.into())))
}

/// Disks and network cards. Passed-through devices (`usb`, `hostpci`) reach the host and are not accepted.
fn is_boot_device(text: &str) -> bool {
    let number = ["ide", "sata", "scsi", "virtio", "net"].iter().find_map(|bus| text.strip_prefix(bus));
    number.is_some_and(|number| (1..=2).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit()))
}

const STARTUP_KEYS: [&str; 3] = ["order", "up", "down"];

fn startup<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, place: Span) -> Result<Option<Startup>, End> {
    let mut startup = Startup::default();
    let seen = reader.fields("`startup`", &STARTUP_KEYS, |reader, key, _| {
        let number = reader.integer("a part of `startup`", 0, 1_000_000)?.and_then(|(number, _)| u32::try_from(number).ok());
        match key {
            0 => startup.order = number,
            1 => startup.up = number,
            _ => startup.down = number,
        }
        Ok(())
    })?;
    let Some(seen) = seen else { return Ok(None) };
    if (0..STARTUP_KEYS.len()).all(|key| seen.key(key).is_none()) {
        return reader.refuse(
            Diagnostic::new(place, "`startup` says nothing").help("give `order`, `up` or `down`, or `startup: null` to remove it"),
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
            assert_eq!(mib(bad), None, "{bad:?}");
        }
        assert_eq!((mib("512MiB"), mib("8GiB"), mib("1TiB"), mib("0MiB")), (Some(512), Some(8192), Some(1 << 20), Some(0)));
    }

    #[test]
    fn decimals_have_at_most_three_places() {
        for bad in ["", ".5", "1.", "1.0001", "-1", "01", "1e3", "1,5", "99999999"] {
            assert_eq!(decimal(bad), None, "{bad:?}");
        }
        assert_eq!((decimal("1.5"), decimal("2"), decimal("0.125"), decimal("0")), (Some(1500), Some(2000), Some(125), Some(0)));
    }

    #[test]
    fn passed_through_devices_are_not_booted_from() {
        for bad in ["usb0", "hostpci0", "scsi", "scsi100", "SCSI0", "/dev/sda", "efidisk0"] {
            assert!(!is_boot_device(bad), "{bad:?}");
        }
        assert!(is_boot_device("scsi30") && is_boot_device("net0"));
    }
}
