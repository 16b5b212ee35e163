//! docs/doorbell.md against the layout it describes, so that they cannot drift.
//!
//! The document's tables are read by their first heading: `<Struct> offset` for a
//! layout, `<Name> bit` and `<Name> value` for flags and choices. Each table must
//! say of each row what the code says, leave no hole and no overlap, and end where
//! the struct ends.

use std::mem::{align_of, offset_of, size_of};

use pv_tlb::abi::doorbell::{
    CPUID_FEATURES, CPUID_PAGES, CPUID_SIGNATURE, DoorbellPage, Features, GuestArea, GuestFlags,
    HostArea, HostFlags, MAGIC, Request, RequestFlags, Response, RunHint, Status, VERSION,
};

const DOC: &str = include_str!("../../docs/doorbell.md");

/// Cells of the rows of the table whose first heading is `heading`.
fn table(doc: &str, heading: &str) -> Vec<Vec<String>> {
    let start = format!("| {heading} |");
    doc.lines()
        .skip_while(|line| !line.starts_with(&start))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(clean).collect())
        .collect()
}

fn clean(cell: &str) -> String {
    cell.trim().trim_matches('`').to_string()
}

fn number(text: &str) -> u64 {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).expect("a hexadecimal number"),
        None => text.parse().expect("a decimal number"),
    }
}

/// Bytes of a type as the tables write it: `u32`, `u64 x 16`, or an area.
fn bytes(text: &str) -> usize {
    let (unit, count) = text.split_once(" x ").unwrap_or((text, "1"));
    let unit = match unit {
        "u32" => 4,
        "u64" => 8,
        "HostArea" => size_of::<HostArea>(),
        "GuestArea" => size_of::<GuestArea>(),
        "Request" => size_of::<Request>(),
        "Response" => size_of::<Response>(),
        other => panic!("the document has a type {other} that this test does not know"),
    };
    unit * number(count) as usize
}

/// A struct as the code has it: its size and the offsets of its public fields.
struct Layout {
    name: &'static str,
    size: usize,
    fields: Vec<(&'static str, usize)>,
}

macro_rules! layout {
    ($name:ident, $size:expr, $($field:ident),+) => {
        Layout {
            name: stringify!($name),
            size: $size,
            fields: vec![$((stringify!($field), offset_of!($name, $field))),+],
        }
    };
}

fn layouts() -> Vec<Layout> {
    let page_end = offset_of!(DoorbellPage, response) + size_of::<Response>();
    vec![
        layout!(DoorbellPage, page_end, host, guest, request, response),
        layout!(HostArea, size_of::<HostArea>(), magic, version, vcpu, flags, run_hint, requested),
        layout!(GuestArea, size_of::<GuestArea>(), flags, section, idle),
        layout!(Request, size_of::<Request>(), scope, flags, tags, stride, start, pages, seq, set),
        layout!(Response, size_of::<Response>(), status, kicked, deferred, seq, waited_ns),
    ]
}

/// Where `doc` and the code differ about `layout`.
fn layout_differences(doc: &str, layout: &Layout) -> Vec<String> {
    let rows = table(doc, &format!("{} offset", layout.name));
    let mut differences = Vec::new();
    let mut end = 0;
    for row in &rows {
        let (offset, field) = (number(&row[0]) as usize, &row[2]);
        if offset != end {
            differences.push(format!("{}.{field}: {offset:#x} after {end:#x}", layout.name));
        }
        end = offset + bytes(&row[1]);
    }
    if end != layout.size {
        differences.push(format!("{} ends at {end:#x}, not {:#x}", layout.name, layout.size));
    }
    for (field, offset) in &layout.fields {
        let said = rows.iter().find(|row| row[2] == *field).map(|row| number(&row[0]) as usize);
        if said != Some(*offset) {
            differences.push(format!("{}.{field}: {said:?}, not {offset:#x}", layout.name));
        }
    }
    differences
}

#[test]
fn the_documents_layouts_are_the_codes_layouts() {
    for layout in layouts() {
        assert_eq!(layout_differences(DOC, &layout), Vec::<String>::new());
    }
    assert_eq!(align_of::<DoorbellPage>(), 4096);
}

#[test]
fn a_wrong_offset_a_lost_row_and_a_wrong_type_are_noticed() {
    for (right, wrong) in [
        ("| `0x18` | u64 | `pages` |", "| `0x1c` | u64 | `pages` |"),
        ("| `0x08` | u32 | `vcpu` |", "| `0x08` | u32 | `cpu` |"),
        ("| `0x18` | u64 | `waited_ns` |", "| `0x18` | u32 | `waited_ns` |"),
        ("| `0x40` | u64 x 16 | `set` |", "| `0x40` | u64 x 8 | `set` |"),
        ("| `0x040` | GuestArea | `guest` |", "| `0x050` | GuestArea | `guest` |"),
    ] {
        assert!(DOC.contains(right), "{right}");
        let drifted = DOC.replace(right, wrong);
        let found: usize = layouts().iter().map(|l| layout_differences(&drifted, l).len()).sum();
        assert!(found > 0, "{wrong}");
    }
}

/// Number and name of each row of the table under `heading`.
fn numbered(heading: &str) -> Vec<(u64, String)> {
    table(DOC, heading).iter().map(|row| (number(&row[0]), row[1].clone())).collect()
}

fn flags_of<F: bitflags::Flags<Bits = u32>>() -> Vec<(u64, String)> {
    let bit = |flag: &bitflags::Flag<F>| u64::from(flag.value().bits().trailing_zeros());
    F::FLAGS.iter().map(|flag| (bit(flag), flag.name().to_string())).collect()
}

#[test]
fn the_documents_flags_are_the_codes_flags() {
    assert_eq!(numbered("Features bit"), flags_of::<Features>());
    assert_eq!(numbered("HostFlags bit"), flags_of::<HostFlags>());
    assert_eq!(numbered("GuestFlags bit"), flags_of::<GuestFlags>());
    assert_eq!(numbered("RequestFlags bit"), flags_of::<RequestFlags>());
}

#[test]
fn the_documents_values_are_the_codes_values() {
    let statuses: Vec<(u64, String)> = (0..)
        .map_while(|raw| Status::try_from(raw).ok())
        .map(|status| (u64::from(status as u32), format!("{status:?}")))
        .collect();
    assert_eq!(numbered("Status value"), statuses);
    let hints = [RunHint::Unknown, RunHint::OnPcpu, RunHint::OffPcpu];
    let hints = hints.map(|hint| (u64::from(hint as u32), format!("{hint:?}")));
    assert_eq!(numbered("RunHint value"), hints);
}

#[test]
fn the_document_names_the_codes_constants() {
    let leaves: Vec<u64> =
        table(DOC, "leaf").iter().filter(|r| !r[0].is_empty()).map(|r| number(&r[0])).collect();
    assert_eq!(leaves, [CPUID_SIGNATURE, CPUID_FEATURES, CPUID_PAGES].map(u64::from));
    assert!(DOC.contains(&format!("This is **version {VERSION}**.")));
    assert!(DOC.contains(&format!("`{MAGIC:#x}`, the bytes `PVTB`")));
    assert_eq!(&MAGIC.to_le_bytes(), b"PVTB");
    assert!(DOC.contains(&format!("host.version != {VERSION}")));
    assert!(DOC.contains(&format!("host.magic != {MAGIC:#x}")));
}
