//! The members of a zip archive, one after the other. An archive that was cut off has no directory:
//! the headers before the members find those that are whole.

use std::io::{self, Cursor, Read};

use zip::ZipArchive;
use zip::read::read_zipfile_from_stream;

/// A member that is being read.
pub type Member<'m> = Result<&'m mut dyn Read, String>;

/// The longest name of a member that is shown.
const MAX_NAME: usize = 200;

/// Calls `each` with the name and the bytes of each member, or why it has none that can be read.
///
/// Returns why the archive is not whole, if it is not.
///
/// # Errors
/// Those of `each`.
pub fn members<E>(
    bytes: &[u8],
    each: &mut dyn FnMut(&str, Member<'_>) -> Result<(), E>,
) -> Result<Option<String>, E> {
    let Ok(mut archive) = ZipArchive::new(Cursor::new(bytes)) else {
        return without_directory(bytes, each);
    };
    for index in 0..archive.len() {
        let name = archive.name_for_index(index).and_then(Result::ok);
        let name = name.map_or_else(|| format!("member {index}"), |name| shown(&name));
        match archive.by_index(index) {
            Ok(mut member) => each(&name, Ok(&mut member))?,
            Err(error) => each(&name, Err(error.to_string()))?,
        }
    }
    Ok(None)
}

fn without_directory<E>(
    mut bytes: &[u8],
    each: &mut dyn FnMut(&str, Member<'_>) -> Result<(), E>,
) -> Result<Option<String>, E> {
    let no_directory = "the archive has no directory: the program that wrote it was cut off, and \
                        what is whole in it is read";
    // At the end of the bytes there is no further header.
    while !bytes.is_empty() {
        match read_zipfile_from_stream(&mut bytes) {
            Ok(Some(mut member)) => {
                let name = member.name().map(|name| shown(&name)).unwrap_or_default();
                each(&name, Ok(&mut member))?;
                // To the header of the next one.
                if io::copy(&mut member, &mut io::sink()).is_err() {
                    break;
                }
            }
            Ok(None) | Err(_) => break,
        }
    }
    Ok(Some(no_directory.to_owned()))
}

/// The beginning of a name: it is data.
fn shown(name: &str) -> String {
    name.chars().take(MAX_NAME).collect()
}
