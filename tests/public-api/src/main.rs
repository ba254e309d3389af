//! `public-api-text FILE`: prints the public API that the JSON of rustdoc in FILE says.

use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(file) = std::env::args_os().nth(1) else {
        eprintln!("usage: public-api-text FILE");
        return ExitCode::from(2);
    };
    // Without what every type has: blanket implementations, and auto traits.
    let api = public_api::Builder::from_rustdoc_json(file)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .build();
    match api {
        Ok(api) => {
            print!("{api}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("public-api-text: {error}");
            ExitCode::FAILURE
        }
    }
}
