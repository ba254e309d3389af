//! A validator for the part of JSON Schema that docs/schema uses. A keyword that it does not know
//! is a failure, so that no schema says more than is checked.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

/// The schemas by their names.
pub(super) struct Schemas {
    all: BTreeMap<String, Value>,
}

impl Schemas {
    /// Those of docs/schema.
    pub(super) fn read() -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schema");
        let mut all = BTreeMap::new();
        for entry in fs::read_dir(folder).expect("the schemas") {
            let path = entry.expect("a file").path();
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
            let name = name.strip_suffix(".schema.json").expect("a schema").to_owned();
            let text = fs::read_to_string(&path).expect("a schema");
            all.insert(name, serde_json::from_str(&text).expect("JSON"));
        }
        Self { all }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.all.keys().map(String::as_str)
    }

    /// What is wrong with a value, with the path to it.
    pub(super) fn check(&self, name: &str, value: &Value) -> Vec<String> {
        let schema = self.all.get(name).unwrap_or_else(|| panic!("no schema of {name}"));
        let mut problems = Vec::new();
        self.walk((name, schema), "", value, &mut problems);
        problems
    }

    fn walk(
        &self,
        (file, schema): (&str, &Value),
        path: &str,
        value: &Value,
        problems: &mut Vec<String>,
    ) {
        let keywords = schema.as_object().expect("a schema is an object");
        let mut wrong = |what: String| problems.push(format!("{path}: {what}"));
        let mut inner = Vec::new();
        for (keyword, said) in keywords {
            match keyword.as_str() {
                "$schema" | "title" | "description" | "$defs" | "format" => {}
                "$ref" => inner.push((self.resolved(file, said), path.to_owned(), value)),
                "type" if !is_type(said, value) => wrong(format!("{value} is no {said}")),
                "const" if value != said => wrong(format!("{value} is not {said}")),
                "enum" if !said.as_array().expect("a list").contains(value) => {
                    wrong(format!("{value} is none of {said}"));
                }
                "minimum" if value.as_f64() < said.as_f64() => wrong(format!("{value} < {said}")),
                "type" | "const" | "enum" | "minimum" => {}
                "required" => {
                    for key in said.as_array().expect("a list") {
                        let key = key.as_str().expect("a name");
                        if value.get(key).is_none() {
                            wrong(format!("{key} is missing"));
                        }
                    }
                }
                "properties" => {
                    for (key, schema) in said.as_object().expect("an object") {
                        if let Some(value) = value.get(key) {
                            inner.push(((file, schema), format!("{path}/{key}"), value));
                        }
                    }
                }
                "additionalProperties" if *said == false => {
                    let known = keywords["properties"].as_object().expect("an object");
                    let found = value.as_object().into_iter().flatten();
                    for (key, _) in found.filter(|(key, _)| !known.contains_key(*key)) {
                        wrong(format!("{key} is not known"));
                    }
                }
                "additionalProperties" => {}
                "items" => {
                    for (at, value) in value.as_array().into_iter().flatten().enumerate() {
                        inner.push(((file, said), format!("{path}/{at}"), value));
                    }
                }
                "oneOf" => {
                    let fits = |schema: &&Value| {
                        let mut problems = Vec::new();
                        self.walk((file, schema), path, value, &mut problems);
                        problems.is_empty()
                    };
                    let fitting = said.as_array().expect("a list").iter().filter(fits).count();
                    if fitting != 1 {
                        wrong(format!("{value} is {fitting} of the kinds, not one"));
                    }
                }
                other => panic!("{file}: the keyword {other} is not known"),
            }
        }
        for (schema, path, value) in inner {
            self.walk(schema, &path, value, problems);
        }
    }

    /// The schema that a reference such as `common.schema.json#/$defs/run` names.
    fn resolved<'a>(&'a self, file: &'a str, reference: &Value) -> (&'a str, &'a Value) {
        let (name, pointer) =
            reference.as_str().and_then(|text| text.split_once('#')).expect("a reference");
        let file = if name.is_empty() { file } else { name };
        let file = file.strip_suffix(".schema.json").unwrap_or(file);
        let (name, all) = self.all.get_key_value(file).expect("a file of the folder");
        (name, all.pointer(pointer).unwrap_or_else(|| panic!("no {reference}")))
    }
}

/// Whether a value is of the type, or of one of the types.
fn is_type(wanted: &Value, value: &Value) -> bool {
    if let Some(several) = wanted.as_array() {
        return several.iter().any(|one| is_type(one, value));
    }
    match wanted.as_str().expect("a type") {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("no type {other}"),
    }
}

#[test]
fn the_validator_finds_what_is_wrong() {
    let schemas = Schemas::read();
    let good = serde_json::json!({"action": "hold", "run": "r", "agent": "a", "changed": true});
    assert_eq!(schemas.check("hold", &good), Vec::<String>::new());
    for (key, value) in [
        ("action", Value::from("held")),
        ("changed", Value::from(1)),
        ("changed", Value::Null),
        ("other", Value::from(1)),
    ] {
        let mut bad = good.clone();
        bad[key] = value;
        assert_ne!(schemas.check("hold", &bad), Vec::<String>::new(), "{bad}");
    }
    let missing = serde_json::json!({"action": "hold", "run": "r", "agent": "a"});
    assert_eq!(schemas.check("hold", &missing), ["/: changed is missing".replace('/', "")]);
    let bad = serde_json::json!({"action": "evict"});
    assert_eq!(schemas.check("gc", &bad).len(), 1);
}
