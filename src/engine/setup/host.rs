//! The name of this machine, for error messages, and the id of its current boot, a hint for
//! recovery: equal ids mean that the page cache survived; an unknown id counts as another boot.

/// The name of this machine, or an empty string.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The id of the current boot, a UUID, if the system has one.
pub(crate) fn boot_id() -> Option<[u8; 16]> {
    parse_uuid(&std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?)
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits = text.trim_end().replace('-', "");
    let is_uuid = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_uuid.then(|| u128::from_str_radix(&digits, 16).ok()).flatten().map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_uuids_are_parsed() {
        let id = parse_uuid("00112233-4455-6677-8899-aAbBcCdDeEfF").unwrap();
        assert_eq!(id[..4], [0x00, 0x11, 0x22, 0x33]);
        assert_eq!(id[12..], [0xcc, 0xdd, 0xee, 0xff]);
        for bad in [
            "",
            "00112233-4455-6677-8899-aabbccddeef",
            "00112233-4455-6677-8899-aabbccddeefg",
            "+0112233-4455-6677-8899-aabbccddeeff",
            "00112233-4455-6677-8899-aabbccddee\u{e9}",
        ] {
            assert_eq!(parse_uuid(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_machine_has_a_name_and_a_boot() {
        assert!(!host_name().is_empty());
        assert_eq!(boot_id(), boot_id());
    }
}
